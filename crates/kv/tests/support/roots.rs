//! The roots of a heap.

use rackpool_kv::{CasError, GlobalAddr, RootUpdate, Roots};

use super::heap::{Heap, HeapError};
use super::scheduler::Fault;

impl Roots for Heap {
    fn root(&self, name: &str) -> Result<Option<GlobalAddr>, HeapError> {
        if self.step(true) == Fault::Refused {
            return Err(HeapError::Away);
        }
        Ok(self.roots.lock().unwrap().get(name).copied())
    }

    fn set_root(
        &self,
        name: &str,
        expected: Option<GlobalAddr>,
        new: Option<GlobalAddr>,
    ) -> Result<RootUpdate, CasError<HeapError>> {
        if self.step(true) == Fault::Refused {
            return Err(CasError::Failed(HeapError::Away));
        }
        let mut roots = self.roots.lock().unwrap();
        let now = roots.get(name).copied();
        if now != expected {
            return Ok(RootUpdate { addr: now, changed: false });
        }
        match new {
            Some(addr) => roots.insert(name.into(), addr),
            None => roots.remove(name),
        };
        Ok(RootUpdate { addr: new, changed: true })
    }
}
