//! The server's thread: it owns the fabric to which all connections go.

use std::sync::mpsc::Sender;
use std::time::Duration;

use rackpool_fabric::Event;
use rackpool_fabric::emulated::NumaModel;
use rackpool_sync::atomic::{AtomicBool, Ordering};

use crate::fabrics::{FabricChoice, SERVER};
use crate::kv::{KeyValueServer, Pace};
use crate::memory::Buffer;
use crate::threads::{GLANCE, Idle, run_on};
use crate::{StudyError, Workload};

/// Between two polls of a server that only connections need.
const REST: Duration = Duration::from_millis(1);

/// What the server of a measurement is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerPlan<'a> {
    pub(crate) fabric: FabricChoice<'a>,
    pub(crate) modelled: Option<NumaModel>,
    pub(crate) workload: Workload,
    pub(crate) connections: u32,
    /// Modelled time of a request; `None` without a model.
    pub(crate) request_time: Option<Duration>,
    /// Processors of the card's node, for the fabric's own threads.
    pub(crate) card_cpus: &'a [u32],
    /// Processors of the registered memory's node, for the thread that answers requests.
    pub(crate) memory_cpus: &'a [u32],
    pub(crate) idle: Idle,
}

/// Signals from the measuring threads.
#[derive(Debug, Default)]
pub(crate) struct ServerSignals {
    /// All connections are there.
    pub(crate) is_measuring: AtomicBool,
    /// The measurement is over.
    pub(crate) stop: AtomicBool,
}

impl ServerPlan<'_> {
    /// Bytes of the registered memory for an operation's bytes.
    pub(crate) fn memory_bytes(&self, operation_bytes: u32) -> u64 {
        match self.workload {
            Workload::KeyValue => KeyValueServer::bytes(self.connections),
            Workload::Read | Workload::Write => {
                u64::from(self.connections) * u64::from(operation_bytes)
            }
        }
    }

    /// Runs the server until told to stop. Sends its address when it is ready.
    pub(crate) fn run(
        &self,
        memory: &Buffer,
        signals: &ServerSignals,
        address: Sender<String>,
    ) -> Result<(), StudyError> {
        run_on(self.card_cpus)?;
        let mut fabric = self.fabric.start(SERVER, memory, self.modelled)?;
        let region = fabric.register(memory.region());
        let mut key_value = match self.workload {
            Workload::KeyValue => {
                run_on(self.memory_cpus)?;
                let pace = self.request_time.map(Pace::new);
                Some(KeyValueServer::new(&memory.mapping, region, self.connections, pace)?)
            }
            Workload::Read | Workload::Write => None,
        };
        // Nobody listens if the measurement has ended already.
        let _ = address.send(fabric.address());
        let mut events = Vec::new();
        // SYNC: pairs with the store of `stop` in `Session::run`.
        while !signals.stop.load(Ordering::Acquire) {
            fabric.poll(&mut events);
            let is_idle = events.is_empty();
            for event in events.drain(..) {
                // A client that ends early reports its own error.
                if let (Some(server), event) = (&mut key_value, event)
                    && !matches!(event, Event::Disconnected { .. })
                {
                    server.take_in(event, &mut *fabric)?;
                }
            }
            // SYNC: pairs with the store of `is_measuring` in `Session::client`.
            match (is_idle, &key_value, signals.is_measuring.load(Ordering::Acquire)) {
                (false, ..) => {}
                (true, Some(_), true) => self.idle.wait(),
                (true, None, true) => std::thread::sleep(REST),
                (true, _, false) => std::thread::sleep(GLANCE),
            }
        }
        Ok(())
    }
}
