//! Invariants of an object's bytes while no client changes it.

use super::ledger::{Ledger, WORKERS};
use super::worker;

/// The word at an offset of an object.
fn word_at(bytes: &[u8], at: u64) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let (word, _) = bytes.get(at..)?.split_first_chunk()?;
    Some(u64::from_le_bytes(*word))
}

/// A violation in an object: a word that is older than the last acknowledged write, newer than any
/// write that was begun, or torn; a counter without an acknowledged addition, or with one too many.
#[must_use]
pub fn problem(ledger: &Ledger, object: u64, bytes: &[u8]) -> Option<String> {
    for worker in 0..WORKERS {
        let pair = ledger.written(worker, object);
        let word = word_at(bytes, worker::place(worker))?;
        let number = worker::number_of(worker, object, word);
        if !number.is_some_and(|number| (pair.second..=pair.first).contains(&number)) {
            return Some(format!("word {worker} is {word:#x}, number {number:?}: {pair:?}"));
        }
    }
    let (sum, pair) = (word_at(bytes, worker::place(WORKERS))?, ledger.additions(object));
    let range = pair.first..=pair.first + pair.second;
    (!range.contains(&sum)).then(|| format!("{sum} added, {pair:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: u64 = 7;

    fn set(bytes: &mut [u8], place: u64, word: u64) {
        let at = usize::try_from(worker::place(place)).unwrap();
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// The violation if the word of worker 1 is `word` and the counter is `sum`. Writes up to 9 are
    /// acknowledged and the tenth is begun; 5 additions are acknowledged and one is not.
    fn found(word: u64, sum: u64) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::create(&folder.path().join("ledger")).unwrap();
        ledger.begin(1, OBJECT, 9);
        ledger.acknowledge(1, OBJECT, 9);
        ledger.begin(1, OBJECT, 10);
        for _ in 0..5 {
            ledger.begin_addition(3, OBJECT);
            ledger.end_addition(3, OBJECT, true);
        }
        ledger.begin_addition(2, OBJECT);
        let mut bytes = vec![0; usize::try_from(worker::OBJECT).unwrap()];
        set(&mut bytes, 1, word);
        set(&mut bytes, WORKERS, sum);
        problem(&ledger, OBJECT, &bytes)
    }

    fn word(number: u64) -> u64 {
        worker::word_of(1, OBJECT, number)
    }

    #[test]
    fn what_was_acknowledged_is_there_and_what_was_begun_may_be() {
        for number in [9, 10] {
            for sum in [5, 6] {
                assert_eq!(found(word(number), sum), None, "{number}, {sum}");
            }
        }
    }

    #[test]
    fn a_lost_write_and_one_that_nobody_has_begun_are_found() {
        for wrong in [0, word(8), word(11), worker::word_of(2, OBJECT, 9), word(9) ^ 1] {
            assert!(found(wrong, 5).is_some_and(|found| found.contains("word 1")), "{wrong:#x}");
        }
    }

    #[test]
    fn a_word_that_was_written_in_halves_is_found() {
        const LOW: u64 = 0xffff_ffff;
        for torn in [word(9) & LOW | word(10) & !LOW, word(10) & LOW | word(9) & !LOW] {
            let found = found(torn, 5);
            assert!(found.as_ref().is_some_and(|found| found.contains("number None")), "{found:?}");
        }
    }

    #[test]
    fn an_addition_that_is_lost_or_done_twice_is_found() {
        for sum in [0, 4, 7] {
            assert!(found(word(9), sum).is_some_and(|found| found.contains("added")), "{sum}");
        }
    }
}
