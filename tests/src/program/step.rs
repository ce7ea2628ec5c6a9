//! One operation between two marks (stops), so that a tracer can kill the program at any
//! instruction.

pub mod store;

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, raise};
use nix::sys::{prctl, ptrace};
use rackpool_client::{ClientOptions, GlobalAddr, Pin, Pool, PublishCas, PublishMode, Reservation};
use rackpool_kv::{Handle, Table};

use super::store::value;
use super::{Arguments, say};
use crate::contents;

/// The bit of a word that takes an object out of a link; no address has it.
pub const TOMBSTONE: u64 = 1 << 63;
/// Bytes of a value in the table.
pub const VALUE: usize = 400;
/// The bytes of a segment, and its slots. Every key's bucket path covers all of them.
pub const SEGMENT: u64 = 256;
const SLOTS: usize = 24;
/// Objects that fill a thread's cache of one size.
const CACHE: usize = 64;

type Work = Box<dyn FnOnce() -> anyhow::Result<Leftover>>;

/// What an operation leaves behind.
struct Leftover {
    /// The object that it allocated.
    object: Option<GlobalAddr>,
    /// Values that must not be dropped before the second mark.
    _kept: Box<dyn Any>,
}

fn kept(what: impl Any) -> anyhow::Result<Leftover> {
    Ok(Leftover { object: None, _kept: Box::new(what) })
}

/// State before the first mark: the program's objects, and the operation to carry out.
struct Prepared {
    objects: Vec<GlobalAddr>,
    work: Work,
}

/// `step OPERATION BYTES RUN LINK TABLE`: prepares an operation, prints `ready ADDR...` with the
/// program's objects, stops, carries the operation out, and stops again. Once resumed it prints
/// `brought ADDR...` with the object that the operation allocated, and stops for the last time.
pub(super) fn step(
    dir: PathBuf,
    options: ClientOptions,
    arguments: &mut Arguments,
) -> anyhow::Result<()> {
    // The parent may end without killing this process.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    let operation = arguments.text("OPERATION")?;
    let prepared = if operation == "open" {
        let work: Work = Box::new(move || {
            let pool = Pool::open(options)?;
            pool.ping()?;
            kept(pool)
        });
        Prepared { objects: Vec::new(), work }
    } else {
        let scene = Scene {
            dir,
            pool: Arc::new(Pool::open(options)?),
            bytes: arguments.number("BYTES")?,
            run: arguments.number("RUN")?,
            link: arguments.addr("LINK")?,
            table: arguments.addr("TABLE")?,
        };
        scene.prepare(&operation)?
    };
    let objects = prepared.objects.iter().map(|addr| format!(" {:x}", addr.raw()));
    say(&format!("ready{}", objects.collect::<String>()))?;
    // Where tracing is forbidden the program is still stopped and killed.
    let _ = ptrace::traceme();
    raise(Signal::SIGSTOP)?;
    let kept = (prepared.work)()?;
    raise(Signal::SIGSTOP)?;
    let object = kept.object.map(|addr| format!(" {:x}", addr.raw()));
    say(&format!("brought{}", object.unwrap_or_default()))?;
    raise(Signal::SIGSTOP)?;
    drop(kept);
    Ok(())
}

struct Scene {
    /// The pool's folder.
    dir: PathBuf,
    pool: Arc<Pool>,
    bytes: u64,
    run: u64,
    link: GlobalAddr,
    table: GlobalAddr,
}

impl Scene {
    fn prepare(self, operation: &str) -> anyhow::Result<Prepared> {
        self.pool.ping()?;
        match operation {
            "alloc" | "refill" | "drain" | "run" | "free" | "free-run" => self.objects(operation),
            "read" | "write" | "miss" | "add" => self.accesses(operation),
            "reservation" | "abandon" | "publish" | "finish" | "tombstone" => {
                self.reservations(operation)
            }
            "lock" | "unlock" => self.locks(operation),
            "put" | "delete" | "compare" | "compact" => self.table(operation),
            "fixed" | "fixed-refill" | "extents" | "free-head" | "pin" | "free-pinned"
            | "reserve-owned" | "publish-owned" => self.fixed(operation),
            name if name.starts_with("store-") => self.store(name),
            "ping" => {
                let Self { pool, .. } = self;
                let work: Work = Box::new(move || {
                    pool.ping()?;
                    kept(pool)
                });
                Ok(Prepared { objects: Vec::new(), work })
            }
            "close" => {
                for bytes in [self.bytes, self.bytes * 2, self.run] {
                    self.pool.free(self.pool.alloc(bytes)?)?;
                }
                let pool = Arc::into_inner(self.pool).context("the pool is used elsewhere")?;
                let work: Work = Box::new(move || {
                    pool.close();
                    kept(())
                });
                Ok(Prepared { objects: Vec::new(), work })
            }
            other => bail!("there is no operation '{other}'"),
        }
    }

    /// An object of the program that holds the pattern of its address.
    fn object(&self, bytes: u64) -> anyhow::Result<GlobalAddr> {
        let addr = self.pool.alloc(bytes)?;
        self.pool.write(addr, &contents::of(addr.raw(), usize::try_from(bytes)?))?;
        Ok(addr)
    }

    /// As [`Self::object`], allocated by another thread, so that this thread's caches and pages do
    /// not know it.
    fn object_of_another_thread(&self, bytes: u64) -> anyhow::Result<GlobalAddr> {
        std::thread::scope(|scope| {
            let made = scope.spawn(|| self.object(bytes)).join();
            made.map_err(|_| anyhow::anyhow!("a thread panicked"))?
        })
    }

    fn objects(self, operation: &str) -> anyhow::Result<Prepared> {
        let bytes = self.bytes;
        let objects = match operation {
            "alloc" => {
                self.pool.free(self.pool.alloc(bytes)?)?;
                Vec::new()
            }
            "free" => vec![self.object(bytes)?],
            "free-run" => vec![self.object(self.run)?],
            "drain" => {
                let last = self.object_of_another_thread(bytes)?;
                let held: Result<Vec<_>, _> = (0..CACHE).map(|_| self.pool.alloc(bytes)).collect();
                held?.into_iter().try_for_each(|addr| self.pool.free(addr))?;
                vec![last]
            }
            _ => Vec::new(),
        };
        let bytes = if operation == "run" { self.run } else { bytes };
        let (pool, freed) = (self.pool, objects.first().copied());
        let work: Work = match freed {
            Some(addr) => Box::new(move || {
                pool.free(addr)?;
                kept(pool)
            }),
            None => Box::new(move || {
                let object = Some(pool.alloc(bytes)?);
                Ok(Leftover { object, ..kept(pool)? })
            }),
        };
        Ok(Prepared { objects, work })
    }

    fn accesses(self, operation: &str) -> anyhow::Result<Prepared> {
        let len = usize::try_from(self.bytes)?;
        let addr = match operation {
            "miss" => self.object_of_another_thread(self.bytes)?,
            _ => self.object(self.bytes)?,
        };
        let mut found = vec![0; len];
        if operation == "add" {
            self.pool.write(addr, &[0; 8])?;
        }
        if operation != "miss" {
            self.pool.read(addr, &mut found)?;
        }
        let pool = self.pool;
        let work: Work = match operation {
            "write" => {
                let written = contents::of(addr.raw() ^ 1, len);
                Box::new(move || {
                    pool.write(addr, &written)?;
                    kept((pool, written))
                })
            }
            "add" => Box::new(move || kept((pool.fetch_and_add(addr, 1)?, pool))),
            _ => Box::new(move || {
                pool.read(addr, &mut found)?;
                kept((pool, found))
            }),
        };
        Ok(Prepared { objects: vec![addr], work })
    }

    /// Locks the link's line, or writes it under its lock and unlocks it.
    fn locks(self, operation: &str) -> anyhow::Result<Prepared> {
        self.pool.read(self.link, &mut [0; 8])?;
        // A guard borrows the pool, and what is kept borrows nothing.
        let (pool, link): (&'static Pool, _) = (&*Box::leak(Box::new(self.pool)), self.link);
        let work: Work = if operation == "lock" {
            Box::new(move || kept(pool.write_lock(link, 8)?))
        } else {
            let guard = pool.write_lock(link, 8)?;
            let mut word = [0; 8];
            guard.read(link, &mut word)?;
            Box::new(move || {
                guard.write(link, &word)?;
                guard.unlock()?;
                kept(())
            })
        };
        Ok(Prepared { objects: Vec::new(), work })
    }

    fn reservation(&self) -> anyhow::Result<Reservation> {
        let reservation = self.pool.reserve(self.bytes)?;
        self.pool.write(reservation.addr(), &reservation.token().to_le_bytes())?;
        Ok(reservation)
    }

    /// The compare-and-swap that publishes a reservation in the link in place of its present value.
    fn swap(&self, reservation: &Reservation) -> anyhow::Result<PublishCas> {
        let mut word = [0; 8];
        self.pool.read(self.link, &mut word)?;
        let expected = u64::from_le_bytes(word);
        let is_object = expected != 0 && expected & TOMBSTONE == 0;
        let replaced = Some(GlobalAddr::from_raw(expected)).filter(|_| is_object);
        if let Some(published) = replaced {
            // The publisher may have been killed before it could clear the owner word.
            self.pool.read(published, &mut word)?;
            let token = u64::from_le_bytes(word);
            if token != 0 {
                self.pool.compare_and_swap(published, token, 0)?;
            }
        }
        let new = if reservation.addr().is_null() {
            reservation.token() | TOMBSTONE
        } else {
            reservation.addr().raw()
        };
        Ok(PublishCas {
            addr: self.link,
            expected,
            new,
            mask: u64::MAX,
            replaced,
            mode: PublishMode::Plain,
        })
    }

    fn publish(&self) -> anyhow::Result<Reservation> {
        let mut reservation = self.reservation()?;
        let swap = self.swap(&reservation)?;
        anyhow::ensure!(self.pool.publish(&mut reservation, &swap)? == swap.expected, "not alone");
        Ok(reservation)
    }

    fn reservations(self, operation: &str) -> anyhow::Result<Prepared> {
        if matches!(operation, "publish" | "finish" | "tombstone") {
            self.pool.finish(self.publish()?)?;
        }
        let work: Work = match operation {
            "reservation" => {
                self.pool.finish(self.reservation()?)?;
                Box::new(move || kept((self.pool.reserve(self.bytes)?, self.pool)))
            }
            "abandon" => {
                let reservation = self.reservation()?;
                Box::new(move || {
                    self.pool.finish(reservation)?;
                    kept(self.pool)
                })
            }
            "finish" => {
                let reservation = self.publish()?;
                Box::new(move || {
                    self.pool.finish(reservation)?;
                    kept(self.pool)
                })
            }
            _ => {
                let mut reservation = if operation == "publish" {
                    self.reservation()?
                } else {
                    self.pool.tombstone()?
                };
                let swap = self.swap(&reservation)?;
                Box::new(move || {
                    let found = self.pool.publish(&mut reservation, &swap)?;
                    anyhow::ensure!(found == swap.expected, "somebody else changed the link");
                    kept((reservation, self.pool))
                })
            }
        };
        Ok(Prepared { objects: Vec::new(), work })
    }

    /// Operations on fixed objects. Nothing of what the client owns stays when it is killed.
    fn fixed(self, operation: &str) -> anyhow::Result<Prepared> {
        let (bytes, run) = (self.bytes, self.run);
        let head = match operation {
            "fixed-refill" => GlobalAddr::NULL,
            _ => self.pool.alloc_fixed(bytes)?,
        };
        if matches!(operation, "free-head" | "publish-owned") {
            self.pool.alloc_extents(head, run)?;
        }
        let pool = Arc::clone(&self.pool);
        let work: Work = match operation {
            "fixed" | "fixed-refill" => Box::new(move || kept((pool.alloc_fixed(bytes)?, pool))),
            "extents" => Box::new(move || kept((pool.alloc_extents(head, run)?, pool))),
            "pin" => Box::new(move || {
                drop(pool.pin(head)?);
                kept(pool)
            }),
            "free-head" => Box::new(move || {
                pool.free(head)?;
                kept(pool)
            }),
            "free-pinned" => {
                let pin = Pin::new(Arc::clone(&pool), head)?;
                Box::new(move || {
                    pool.free(head)?;
                    kept(pin)
                })
            }
            "reserve-owned" => Box::new(move || kept((pool.reserve_owned(head)?, pool))),
            _ => {
                let mut reservation = pool.reserve_owned(head)?;
                pool.write(head, &reservation.token().to_le_bytes())?;
                let swap = self.swap(&reservation)?;
                Box::new(move || {
                    let found = pool.publish(&mut reservation, &swap)?;
                    anyhow::ensure!(found == swap.expected, "somebody else changed the link");
                    kept((reservation, pool))
                })
            }
        };
        Ok(Prepared { objects: Vec::new(), work })
    }

    fn table(self, operation: &str) -> anyhow::Result<Prepared> {
        let (pool, operation) = (Arc::clone(&self.pool), operation.to_owned());
        let mut handle = Table::open(self.pool, self.table)?.handle();
        let (first, next) = (value(1, VALUE), value(2, VALUE));
        handle.put(b"key", &first)?;
        if operation == "compact" {
            fill(&pool, self.table, &mut handle)?;
        }
        let work: Work = Box::new(move || {
            match operation.as_str() {
                "put" => handle.put(b"key", &next)?,
                "compare" => handle.compare_and_put(b"key", Some(&first), &next)?,
                "delete" => handle.delete(b"key")?,
                _ => handle.put(b"next", &next)?,
            };
            kept((handle, next))
        });
        Ok(Prepared { objects: Vec::new(), work })
    }
}

/// Fills a table's only segment with deleted keys, so that the next key needs a compaction.
fn fill(pool: &Pool, table: GlobalAddr, handle: &mut Handle<Arc<Pool>>) -> anyhow::Result<()> {
    let mut word = [0; 8];
    pool.read(GlobalAddr::from_raw(table.raw() + 16), &mut word)?;
    let directory = GlobalAddr::from_raw(u64::from_le_bytes(word));
    let segment = || {
        let mut entry = [0; 8];
        pool.read(directory, &mut entry).map(|()| entry)
    };
    let before = segment()?;
    let mut number = 0_u64;
    let mut come_and_go = |handle: &mut Handle<Arc<Pool>>| {
        number += 1;
        let key = number.to_le_bytes();
        handle.put(&key, b"")?;
        handle.delete(&key).map(drop)
    };
    while segment()? == before {
        come_and_go(handle)?;
    }
    // The last of these is the only deleted key in the new segment.
    let mut used = 1;
    handle.for_each(|_, _| used += 1)?;
    for _ in used..SLOTS {
        come_and_go(handle)?;
    }
    Ok(())
}
