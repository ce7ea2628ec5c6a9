//! The reserver thread: it allocates the memory of frames before they are used, and returns it to
//! the file system when the frames have been free for long. A dedicated thread does both, because
//! the file system may block.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rackpool_model::FrameId;
use rackpool_shm::memory::MemoryKind;

use crate::DaemonOptions;
use crate::data_plane::{Command, Waker};
use crate::rack::Rack;

/// Target size of the allocated but unused memory.
const STOCK_BYTES: u64 = 32 << 20;

/// An order of the data plane. It hands out the frame to no page until the order is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Allocate the frame's memory.
    Reserve(FrameId),
    /// Return the frame's memory to the file system.
    Release(FrameId),
}

/// When frames have memory, from the operator's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReserveRules {
    /// Target number of free frames with memory.
    pub(crate) stock: usize,
    /// Free frames beyond `stock` are released after this time.
    pub(crate) release_after: Option<Duration>,
}

impl ReserveRules {
    /// Returns the rules; `None` for kinds of memory that are allocated from the start.
    pub(crate) fn of(options: &DaemonOptions) -> anyhow::Result<Option<Self>> {
        let comes_when_used = matches!(options.memory_kind, MemoryKind::Tmpfs | MemoryKind::Memfd);
        if !comes_when_used {
            if options.release_free_after_s.is_some() {
                anyhow::bail!(
                    "--release-free-after-s: memory of kind {} is allocated at the start and can't be returned: omit the option, or choose --memory-kind tmpfs or memfd",
                    options.memory_kind
                );
            }
            return Ok(None);
        }
        let stock = STOCK_BYTES / options.page_size.0.max(1);
        Ok(Some(Self {
            // A swap needs one frame for the arriving page, besides one to hand out.
            stock: usize::try_from(stock)?.clamp(2, 1024),
            release_after: options.release_free_after_s.map(|s| Duration::from_secs(s.into())),
        }))
    }
}

/// Starts the thread. It ends when the data plane drops the returned sender.
pub(crate) fn start(rack: Arc<Rack>, waker: Arc<Waker>) -> io::Result<Sender<Order>> {
    let (sender, orders) = channel();
    std::thread::Builder::new().name("reserver".into()).spawn(move || {
        carry_out(&orders, &rack, &waker);
    })?;
    Ok(sender)
}

fn carry_out(orders: &Receiver<Order>, rack: &Rack, waker: &Waker) {
    let mut refused = false;
    for order in orders {
        let command = match order {
            Order::Reserve(frame) => {
                let result = rack.reserve(frame);
                if let Err(error) = &result
                    && !refused
                {
                    tracing::warn!(
                        "{}: no memory for a frame: {error}: {} is full, or the memory cgroup of this process is; clients that allocate are told that the pool is out of memory until some is free",
                        rack.geometry.rack,
                        rack.directory.pool().display()
                    );
                }
                refused = result.is_err();
                Command::Reserved { frame, is_there: !refused }
            }
            Order::Release(frame) => {
                if let Err(error) = rack.release(frame) {
                    tracing::warn!(
                        "{}: can't return the memory of {frame} to the file system: {error}",
                        rack.geometry.rack
                    );
                }
                Command::Released { frame }
            }
        };
        if !waker.tell(command) {
            return;
        }
    }
}
