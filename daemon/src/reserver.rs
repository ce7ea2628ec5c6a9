//! Memory of frames: reserved before anything lies in it, and given back to the file system when it
//! has been free for long. A thread of its own does both, for the file system may take its time.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rackpool_model::FrameId;
use rackpool_shm::memory::MemoryKind;

use crate::Options;
use crate::plane::{Command, Waker};
use crate::rack::Rack;

/// Memory that is reserved before somebody asks for it.
const STOCK_BYTES: u64 = 32 << 20;

/// What the data plane wants done with a frame that it gives to nobody meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Memory for all of it.
    Reserve(FrameId),
    /// Its memory goes back to the file system.
    Release(FrameId),
}

/// Which frames have their memory when, as the operator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReserveRules {
    /// Frames that are reserved ahead.
    pub(crate) stock: usize,
    /// Frames beyond these that have been free for this long are given back.
    pub(crate) release_after: Option<Duration>,
}

impl ReserveRules {
    /// `None` for memory that is there from the start.
    pub(crate) fn of(options: &Options) -> anyhow::Result<Option<Self>> {
        let comes_when_used = matches!(options.memory_kind, MemoryKind::Tmpfs | MemoryKind::Memfd);
        if !comes_when_used {
            if options.release_free_after_s.is_some() {
                anyhow::bail!(
                    "--release-free-after-s: memory of kind {} is taken from the start and can't be given back: leave the option out, or choose --memory-kind tmpfs or memfd",
                    options.memory_kind
                );
            }
            return Ok(None);
        }
        let stock = STOCK_BYTES / options.page_size.0.max(1);
        Ok(Some(Self {
            // A swap needs one for the page that comes, beside one to give away.
            stock: usize::try_from(stock)?.clamp(2, 1024),
            release_after: options.release_free_after_s.map(|s| Duration::from_secs(s.into())),
        }))
    }
}

/// Starts the thread. It ends when the data plane, which has the other end, has gone.
pub(crate) fn start(rack: Arc<Rack>, waker: Arc<Waker>) -> io::Result<Sender<Order>> {
    let (sender, orders) = channel();
    std::thread::Builder::new().name("reserver".into()).spawn(move || {
        carry_out(&orders, &rack, &waker);
    })?;
    Ok(sender)
}

fn carry_out(orders: &Receiver<Order>, rack: &Rack, waker: &Waker) {
    let mut refused = false;
    for order in orders {
        let command = match order {
            Order::Reserve(frame) => {
                let result = rack.reserve(frame);
                if let Err(error) = &result
                    && !refused
                {
                    tracing::warn!(
                        "{}: no memory for a frame: {error}: {} is full, or this process may use no more (memory cgroup); programs are told that the pool is full until there is some",
                        rack.geometry.rack,
                        rack.directory.pool().display()
                    );
                }
                refused = result.is_err();
                Command::Reserved { frame, is_there: !refused }
            }
            Order::Release(frame) => {
                if let Err(error) = rack.release(frame) {
                    tracing::warn!("{}: {frame} is not given back: {error}", rack.geometry.rack);
                }
                Command::Released { frame }
            }
        };
        if !waker.tell(command) {
            return;
        }
    }
}
