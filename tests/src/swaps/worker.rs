//! A worker: a client that reads and writes words of objects in pages that swap.
//!
//! Each object has a word that only this worker writes, with increasing numbers, and a counter to
//! which all workers add. The ledger notes each operation before it begins and when it is
//! acknowledged, so the next worker of this number goes on where a killed one stopped.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::ensure;
use rackpool_client::{AccessError, ClientOptions, GlobalAddr, Pool};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::ledger::{Kind, Ledger, OBJECTS, WORKERS};
use super::trouble::Trouble;
use rackpool_testing::wait::TIMEOUT;

/// Bytes of an object; several objects lie in a page.
pub const OBJECT: u64 = 16 << 10;
/// The root that names the table of the objects' addresses.
pub const ROOT: &str = "swaps";
/// The number of objects that a worker prefers at a time; the time for which it prefers them.
const FAVOURITES: u64 = OBJECTS / WORKERS;
const SLICE: Duration = Duration::from_millis(30);

/// A multiplier that spreads a number over the upper bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// `SPREAD * UNSPREAD == 1`.
const UNSPREAD: u64 = 0xf1de_83e1_9937_733d;

/// XORs the upper bits into the lower ones; the function is its own inverse.
const fn fold(word: u64) -> u64 {
    word ^ word >> 32
}

/// The word that stands for a number of a worker in an object. Every bit of the number changes bits
/// in both halves of the word, and conversely, so a word composed of parts of two words stands for
/// no number.
#[must_use]
pub const fn word_of(worker: u64, object: u64, number: u64) -> u64 {
    let plain = (number << 16) | (object << 8) | worker;
    fold(fold(plain.wrapping_mul(SPREAD)).wrapping_mul(SPREAD))
}

/// The number for which a word of this worker in this object stands; 0 for the word 0.
#[must_use]
pub const fn number_of(worker: u64, object: u64, word: u64) -> Option<u64> {
    let plain = fold(fold(word).wrapping_mul(UNSPREAD)).wrapping_mul(UNSPREAD);
    match plain & 0xffff == (object << 8) | worker && plain >> 16 < 1 << 40 {
        true => Some(plain >> 16),
        false if word == 0 => Some(0),
        false => None,
    }
}

/// The offset of a worker's word in an object; the counter follows the workers' words. Each word
/// has a cache line of its own, and they are spread over the object.
#[must_use]
pub const fn place(worker: u64) -> u64 {
    worker * (OBJECT / (WORKERS + 1) / 64 * 64)
}

/// The objects' addresses, read from the table that the root names. Retries on errors: a process
/// may have been hit, or be slow on a busy machine.
pub fn objects(pool: &Pool) -> anyhow::Result<Vec<GlobalAddr>> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match read_table(pool) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            outcome => return outcome,
        }
    }
}

fn read_table(pool: &Pool) -> anyhow::Result<Vec<GlobalAddr>> {
    let table = pool.root(ROOT)?.ok_or_else(|| anyhow::anyhow!("there is no table"))?;
    let mut bytes = vec![0; usize::try_from(OBJECTS)? * 8];
    pool.read(table, &mut bytes)?;
    let (words, []) = bytes.as_chunks::<8>() else { anyhow::bail!("half a word") };
    Ok(words.iter().map(|word| GlobalAddr::from_raw(u64::from_le_bytes(*word))).collect())
}

/// Works for ever, and pauses while the ledger says so.
pub fn work(options: ClientOptions, ledger: &Path, worker: u64, seed: u64) -> anyhow::Result<()> {
    ensure!(worker < WORKERS, "worker {worker}: there are {WORKERS}");
    let pool = Pool::open(options)?;
    let objects = objects(&pool)?;
    let ledger = Ledger::open(ledger)?;
    let mut work = Work { pool, objects, ledger, worker, random: SmallRng::seed_from_u64(seed) };
    loop {
        if work.ledger.pauses() {
            work.ledger.rest(worker);
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        work.once()?;
    }
}

struct Work {
    pool: Pool,
    objects: Vec<GlobalAddr>,
    ledger: Ledger,
    worker: u64,
    random: SmallRng,
}

impl Work {
    /// An object: mostly one that this worker prefers now. After [`SLICE`] a worker of the other
    /// rack prefers it.
    fn choose(&mut self) -> u64 {
        if self.random.random_range(0..64) == 0 {
            return self.random.random_range(0..OBJECTS);
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let moment = u64::try_from(time / SLICE.as_nanos()).unwrap_or_default();
        let first = (moment + self.worker) % WORKERS * FAVOURITES;
        first + self.random.random_range(0..FAVOURITES)
    }

    /// Executes one operation and notes its outcome in the ledger; the campaign decides which
    /// failures are allowed. A failure that is never allowed ends this worker with the error.
    fn once(&mut self) -> anyhow::Result<()> {
        let object = self.choose();
        let kind = match self.random.random_range(0..4) {
            0 => Kind::Write,
            1 => Kind::Add,
            _ => Kind::Read,
        };
        let start = Instant::now();
        let result = match kind {
            Kind::Write => self.write(object),
            Kind::Add => self.add(object),
            Kind::Read => self.read(object),
        };
        self.ledger.took(self.worker, start.elapsed());
        match result {
            Ok(()) => self.ledger.succeeded(self.worker, kind),
            Err(error) => {
                let trouble = Trouble::from(&error);
                self.ledger.failed(self.worker, trouble);
                if trouble == Trouble::Other {
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    fn at(&self, object: u64, worker: u64) -> GlobalAddr {
        let object = self.objects[usize::try_from(object).unwrap_or(usize::MAX)];
        GlobalAddr::from_raw(object.raw() + place(worker))
    }

    fn write(&self, object: u64) -> Result<(), AccessError> {
        let number = self.ledger.written(self.worker, object).first + 1;
        self.ledger.begin(self.worker, object, number);
        let word = word_of(self.worker, object, number);
        self.pool.write(self.at(object, self.worker), &word.to_le_bytes())?;
        self.ledger.acknowledge(self.worker, object, number);
        Ok(())
    }

    fn add(&self, object: u64) -> Result<(), AccessError> {
        self.ledger.begin_addition(self.worker, object);
        let result = self.pool.fetch_and_add(self.at(object, WORKERS), 1);
        match &result {
            Ok(_) => self.ledger.end_addition(self.worker, object, true),
            // The addition may have been executed: it stays uncertain.
            Err(AccessError::Indeterminate(_) | AccessError::Daemon(_)) => {}
            Err(_) => self.ledger.end_addition(self.worker, object, false),
        }
        result.map(drop)
    }

    /// Reads the word of any worker and checks that it is not older than the last write
    /// acknowledged before the read, and not newer than the last write begun after it.
    fn read(&mut self, object: u64) -> Result<(), AccessError> {
        let writer = self.random.random_range(0..WORKERS);
        let least = self.ledger.written(writer, object).second;
        let mut bytes = [0; 8];
        self.pool.read(self.at(object, writer), &mut bytes)?;
        let most = self.ledger.written(writer, object).first;
        let word = u64::from_le_bytes(bytes);
        let number = number_of(writer, object, word);
        if !number.is_some_and(|number| (least..=most).contains(&number)) {
            eprintln!(
                "worker {}: word {writer} of object {object} at {} is {word:#x}, number {number:?}, not within {least}..={most}",
                self.worker,
                self.at(object, writer),
            );
            self.ledger.wrong(self.worker);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_tells_whose_it_is() {
        assert_eq!(SPREAD.wrapping_mul(UNSPREAD), 1);
        let one = word_of(3, 47, 1_000);
        assert_eq!(number_of(3, 47, one), Some(1_000));
        assert_eq!(number_of(2, 47, one), None);
        assert_eq!(number_of(3, 46, one), None);
        assert_eq!(number_of(3, 46, 0), Some(0));
    }

    #[test]
    fn a_word_that_is_written_in_parts_tells_nothing() {
        // Any number of the word's bytes may be from one write and the others from the next, or
        // from the initial zero.
        let mut torn_words = 0;
        for number in (0..2_000).chain([1 << 30, (1 << 40) - 2]) {
            let (old, new) = (word_of(1, 20, number), word_of(1, 20, number + 1));
            for before in [old, 0] {
                for bytes in 1..8 {
                    let low = u64::MAX >> (8 * bytes);
                    for torn in [before & low | new & !low, before & !low | new & low] {
                        let is_whole = torn == before || torn == new;
                        let told = number_of(1, 20, torn);
                        assert!(is_whole || told.is_none(), "{bytes} B of {number}: {torn:#x}");
                        torn_words += usize::from(!is_whole);
                    }
                }
            }
        }
        assert!(torn_words > 50_000, "bytes of two writes are hardly ever the same: {torn_words}");
    }

    #[test]
    fn words_are_apart_and_within_the_object() {
        let places: Vec<u64> = (0..=WORKERS).map(place).collect();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= 64));
        assert!(places.iter().all(|at| at % 8 == 0 && at + 8 <= OBJECT));
    }
}
