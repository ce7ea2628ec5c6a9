//! Memory operations that fail, or during which a hook runs.

use std::sync::Mutex;

use super::scheduler::Fault;

/// A fault to inject. Operations are counted from when it was set.
#[derive(Debug)]
struct Trouble {
    /// The operations until then.
    left: u64,
    /// The number of operations that fail from then on.
    count: u64,
    fault: Fault,
}

/// Called once, at the beginning of an operation.
type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub struct Troubles {
    trouble: Mutex<Option<Trouble>>,
    hook: Mutex<Option<(u64, Hook)>>,
}

impl std::fmt::Debug for Troubles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Troubles").field("trouble", &self.trouble).finish_non_exhaustive()
    }
}

impl Troubles {
    /// From the `at`th memory operation on (1 is the next), `count` operations have a fault.
    pub fn fail(&self, at: u64, count: u64, fault: Fault) {
        *self.trouble.lock().unwrap() = Some(Trouble { left: at, count, fault });
    }

    /// Ends the fault; returns whether any operation had it.
    pub fn heal(&self) -> bool {
        self.trouble.lock().unwrap().take().is_some_and(|trouble| trouble.left == 0)
    }

    /// Calls `hook` at the beginning of the `at`th memory operation from now.
    pub fn interrupt(&self, at: u64, hook: impl FnOnce() + Send + 'static) {
        *self.hook.lock().unwrap() = Some((at, Box::new(hook)));
    }

    /// Removes the hook; returns whether it had not been called.
    pub fn forget_hook(&self) -> bool {
        // Dropping the hook may use the memory, so the lock is released first.
        let hook = self.hook.lock().unwrap().take();
        hook.is_some()
    }

    /// An operation begins; returns the fault that it has.
    pub(super) fn step(&self) -> Fault {
        self.call_hook();
        let mut trouble = self.trouble.lock().unwrap();
        let Some(trouble) = &mut *trouble else { return Fault::None };
        trouble.left = trouble.left.saturating_sub(1);
        if trouble.left > 0 || trouble.count == 0 {
            return Fault::None;
        }
        trouble.count -= 1;
        trouble.fault
    }

    fn call_hook(&self) {
        let mut waiting = self.hook.lock().unwrap();
        if let Some((left, _)) = &mut *waiting {
            *left -= 1;
        }
        let due = waiting.take_if(|(left, _)| *left == 0);
        drop(waiting);
        due.into_iter().for_each(|(_, hook)| hook());
    }
}
