use std::time::{Duration, Instant};

use crate::FabricError;
use crate::connector::Source;

const ONE_LINE_EVERY: Duration = Duration::from_secs(1);

/// Logs refused connections. Writes at most one line a second, with the number of refusals left out
/// since the last line, so that unauthenticated peers cannot fill the log.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    quiet_until: Option<Instant>,
    left_out: u64,
}

impl Refusals {
    /// Notes a refused connection.
    pub(crate) fn note(&mut self, from: Source, error: &FabricError, now: Instant) {
        if let Some(line) = self.line(from, error, now) {
            tracing::warn!("{line}");
        }
    }

    /// The line to log; `None` within a second of the last line.
    fn line(&mut self, from: Source, error: &FabricError, now: Instant) -> Option<String> {
        if self.quiet_until.is_some_and(|until| now < until) {
            self.left_out += 1;
            return None;
        }
        self.quiet_until = Some(now + ONE_LINE_EVERY);
        let others = match std::mem::take(&mut self.left_out) {
            0 => String::new(),
            count => format!(" ({count} more since the last line like this)"),
        };
        Some(format!("the fabric refused {from}: {error}{others}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_tells_how_many_were_left_out() {
        let mut refusals = Refusals::default();
        let from = Source::Host("192.0.2.7:99".parse().unwrap());
        let error = FabricError::misbehaved("it speaks another protocol");
        let now = Instant::now();
        let line = refusals.line(from, &error, now).unwrap();
        assert!(line.contains("192.0.2.7:99") && line.contains("another protocol"), "{line}");
        for _ in 0..5000 {
            assert_eq!(refusals.line(from, &error, now), None);
        }
        let line = refusals.line(Source::Unknown, &error, now + ONE_LINE_EVERY).unwrap();
        assert!(line.contains("5000 more"), "{line}");
    }
}
