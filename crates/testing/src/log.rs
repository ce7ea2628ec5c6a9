//! Captures log lines, for tests that expect one.

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::wait::{TIMEOUT, try_wait_until};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Captures the lines that this process logs from now on.
pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let listens = tracing::subscriber::set_global_default(Lines);
        assert!(listens.is_ok(), "somebody else listens");
    });
}

/// Waits until a line with all these parts was logged. Other tests of the process log too.
#[track_caller]
pub fn wait_for(parts: &[&str]) {
    let fits = |line: &String| parts.iter().all(|part| line.contains(part));
    let was_logged = try_wait_until(TIMEOUT, || lines().iter().any(fits));
    assert!(was_logged, "no line has {parts:?}: {:#?}", lines());
}

fn lines() -> MutexGuard<'static, Vec<String>> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Lines;

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Message;

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            lines().push(format!("{value:?}"));
        }
    }
}
