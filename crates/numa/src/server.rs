use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rackpool_fabric::Fabric;
use rackpool_fabric::emulated::NumaModel;
use rackpool_model::RackId;

use crate::fabrics::Provider;
use crate::memory::Memory;

/// The time between two polls of the server: it only accepts connections.
const POLL: Duration = Duration::from_micros(500);

/// The owner of the registered memory. Its processor takes no part in operations.
pub(crate) struct Server {
    pub(crate) address: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(
        provider: &Provider,
        memory: &Arc<Memory>,
        model: Option<NumaModel>,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let mut fabric = provider.start(RackId(0), memory, model, folder)?;
        let address = fabric.address();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("server".into()).spawn(move || {
            let mut events = Vec::new();
            while !told.load(Ordering::Relaxed) {
                fabric.poll(&mut events);
                events.clear();
                std::thread::sleep(POLL);
            }
        })?;
        Ok(Self { address, stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}
