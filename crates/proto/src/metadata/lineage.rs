use alloc::collections::BTreeMap;

use rackpool_model::StorePosition;
use rackpool_wire::metadata::Refusal;

/// One start of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Life {
    server: u64,
    commits: u64,
}

/// The history of the store: the servers that wrote it, in order, and the number of commits of
/// each. A position that a rack has seen is part of it unless the rack saw another store, or a
/// later state of this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lineage {
    lives: BTreeMap<u32, Life>,
}

impl Lineage {
    /// Records the start of a server, which is its first commit. `server` is 0 for a release that
    /// kept no history.
    pub(super) fn start(&mut self, boot: u32, server: u64) {
        if server != 0 {
            self.lives.insert(boot, Life { server, commits: 1 });
        }
    }

    /// Records a commit of the server that started last.
    pub(super) fn advance(&mut self, commit: u64) {
        if let Some(mut last) = self.lives.last_entry() {
            last.get_mut().commits = commit;
        }
    }

    /// Returns the last commit; all zero before the first.
    pub(super) fn position(&self) -> StorePosition {
        let store = self.lives.first_key_value().map_or(0, |(_, first)| first.server);
        let (boot, last) = self.lives.last_key_value().map_or((0, None), |(b, l)| (*b, Some(l)));
        let (server, commit) = last.map_or((0, 0), |last| (last.server, last.commits));
        StorePosition { store, boot, server, commit }
    }

    /// Checks that a commit on which a rack has acted is part of this history.
    ///
    /// # Errors
    /// [`Refusal::OtherStore`] or [`Refusal::OlderStore`].
    pub(super) fn check(&self, seen: StorePosition) -> Result<(), Refusal> {
        let own = self.position();
        if seen.store != own.store {
            return Err(Refusal::OtherStore { seen, own });
        }
        let life = self.lives.get(&seen.boot);
        if life.is_some_and(|life| life.server == seen.server && seen.commit <= life.commits) {
            return Ok(());
        }
        Err(Refusal::OlderStore { seen, own })
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    /// The history of three servers.
    fn lineage() -> Lineage {
        let mut lineage = Lineage::default();
        for (boot, server, commit) in [(1, 70, 5), (2, 71, 1), (3, 72, 9)] {
            lineage.start(boot, server);
            lineage.advance(commit);
        }
        lineage
    }

    fn at(boot: u32, server: u64, commit: u64) -> StorePosition {
        StorePosition { store: 70, boot, server, commit }
    }

    #[test]
    fn every_position_of_the_history_is_admitted() {
        let mut lineage = Lineage::default();
        let mut seen = alloc::vec::Vec::new();
        for (boot, server) in [(1, 70), (2, 71), (3, 72)] {
            lineage.start(boot, server);
            seen.push(lineage.position());
            for commit in 2..5 {
                lineage.advance(commit);
                seen.push(lineage.position());
            }
            for &position in &seen {
                assert_eq!(lineage.check(position), Ok(()), "{position}");
            }
        }
        assert!(seen.is_sorted());
    }

    #[test]
    fn another_store_is_told_from_an_older_copy() {
        let lineage = lineage();
        let other = StorePosition { store: 1, ..at(1, 70, 1) };
        assert!(matches!(lineage.check(other), Err(Refusal::OtherStore { .. })));
        // A later commit, a later start, and a start from a copy.
        for later in [at(3, 72, 10), at(4, 73, 1), at(2, 99, 1), at(1, 70, 6)] {
            let refused = lineage.check(later).unwrap_err();
            assert_eq!(refused, Refusal::OlderStore { seen: later, own: at(3, 72, 9) });
            assert!(refused.to_string().contains("--store"), "{refused}");
        }
    }

    #[test]
    fn servers_that_kept_no_history_are_left_out() {
        let mut lineage = Lineage::default();
        lineage.start(7, 0);
        lineage.start(8, 80);
        let first = StorePosition { store: 80, boot: 8, server: 80, commit: 1 };
        assert_eq!(lineage.position(), first);
    }
}
