//! Starting again what has died.

use std::time::{Duration, Instant};

use super::Cluster;

/// A process that lives for less than this after its start has died at once.
const AT_ONCE: Duration = Duration::from_secs(10);
/// The supervisor gives a process up after this number of such deaths in a row.
const ATTEMPTS: u32 = 5;
/// The pause before the second start; it doubles. The first one has none.
const PAUSE: Duration = Duration::from_millis(200);

/// Watches the processes of a [`Cluster`] and starts those again that have ended.
#[derive(Debug)]
pub struct Supervisor {
    /// The metadata server, then the daemons.
    watched: Vec<Watched>,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    started: Instant,
    /// Deaths soon after the start, in a row.
    deaths: u32,
    /// It has ended; it is started again at this time.
    due: Option<Instant>,
}

impl Watched {
    /// It ended now. When it is to be started again; `None` when it is given up.
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
    /// For a cluster that has just started.
    #[must_use]
    pub fn new(cluster: &Cluster) -> Self {
        let watched = Watched { started: Instant::now(), deaths: 0, due: None };
        Self { watched: vec![watched; cluster.processes().count()] }
    }

    /// Looks at all processes and starts those again that are due. Tells what has happened.
    ///
    /// # Errors
    /// When a process has ended again and again soon after its start, or can't be started.
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
                    "{role} has ended {ATTEMPTS} times soon after its start and is given up: {}",
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

        // One that has lived for a while has a new chance.
        let later = began + AT_ONCE;
        let mut watched = Watched { deaths: ATTEMPTS - 1, ..watched };
        assert_eq!(watched.ended(later), Some(later));
    }
}
