//! Restarting processes that have died.

use std::time::{Duration, Instant};

use super::cluster::Cluster;

/// A process that dies within this time after its start has failed to start.
const AT_ONCE: Duration = Duration::from_secs(10);
/// The supervisor gives up a process after this number of such failures in a row.
const ATTEMPTS: u32 = 5;
/// The pause before the second restart; it doubles with each one. The first restart is immediate.
const PAUSE: Duration = Duration::from_millis(200);

/// Watches the processes of a [`Cluster`] and restarts those that have ended.
#[derive(Debug)]
pub struct Supervisor {
    /// The metadata server, then the daemons.
    watched: Vec<Watched>,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    started: Instant,
    /// Failures soon after the start, in a row.
    deaths: u32,
    /// When to restart the process; `None` while it runs.
    due: Option<Instant>,
}

impl Watched {
    /// Records the end of the process. Returns the time of its restart, or `None` if it is given
    /// up.
    fn ended(&mut self, now: Instant) -> Option<Instant> {
        self.deaths = if now < self.started + AT_ONCE { self.deaths + 1 } else { 1 };
        if self.deaths >= ATTEMPTS {
            return None;
        }
        let pause = match self.deaths {
            1 => Duration::ZERO,
            deaths => PAUSE * 2_u32.pow(deaths - 2),
        };
        self.due = Some(now + pause);
        self.due
    }
}

impl Supervisor {
    /// Watches the processes of a cluster that has just started.
    #[must_use]
    pub fn new(cluster: &Cluster) -> Self {
        let watched = Watched { started: Instant::now(), deaths: 0, due: None };
        Self { watched: vec![watched; cluster.processes().count()] }
    }

    /// Checks all processes, and restarts those whose restart is due. Reports each event to `tell`.
    ///
    /// # Errors
    /// If a process has repeatedly ended soon after its start, or can't be started.
    pub fn look(
        &mut self,
        cluster: &mut Cluster,
        mut tell: impl FnMut(String),
    ) -> anyhow::Result<()> {
        let now = Instant::now();
        for (index, watched) in self.watched.iter_mut().enumerate() {
            let (role, process) = cluster.process(index)?;
            process.keep_log_bounded()?;
            if let Some(due) = watched.due {
                if due <= now {
                    cluster.start_again(index)?;
                    *watched = Watched { started: now, due: None, ..*watched };
                    let id = cluster.process(index)?.1.id();
                    tell(format!("{role} is started again, pid {id}"));
                }
                continue;
            }
            let Some(status) = process.exit_status() else { continue };
            tell(format!("{role}, pid {}, has ended ({status})", process.id()));
            if watched.ended(now).is_none() {
                anyhow::bail!(
                    "{role} has ended {ATTEMPTS} times soon after its start and is not started again: {}",
                    process.last_words(status)
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_come_later_and_later_until_the_process_is_given_up() {
        let began = Instant::now();
        let mut watched = Watched { started: began, deaths: 0, due: None };
        let pauses = [0, 200, 400, 800].map(Duration::from_millis);
        for pause in pauses {
            assert_eq!(watched.ended(began), Some(began + pause));
        }
        assert_eq!(watched.ended(began), None);

        // A process that has lived long enough starts with a fresh count.
        let later = began + AT_ONCE;
        let mut watched = Watched { deaths: ATTEMPTS - 1, ..watched };
        assert_eq!(watched.ended(later), Some(later));
    }
}
