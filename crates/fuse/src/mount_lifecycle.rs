//! The life of a mount, from the command line to the unmount.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use fuser::{Notifier, Session};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, getegid, geteuid};
use rackpool_client::{ClientOptions, Pool};
use rackpool_fs::{Caller, Volume};
use rackpool_output::{UsageError, chain};

use crate::device::Device;
use crate::handlers::Shell;
use crate::metrics::MountMetrics;
use crate::mount_point::{MountPoint, detach, set_read_ahead};
use crate::session::Handshake;
use crate::watcher::{Watcher, wait_for_end_of_input, watch};
use crate::{MountOptions, session};

/// Pool threads beside the serving threads: housekeeping, this one, and those of the volume and the
/// client.
const OTHER_THREADS: u16 = 16;
/// Interval of the volume's housekeeping.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// Mounts the volume and serves it until the mount ends.
///
/// # Errors
/// If the pool or the volume can't be opened, or the mount fails.
pub fn run(options: &MountOptions) -> anyhow::Result<()> {
    if options.watch {
        return watch(options);
    }
    options.metrics.map(rackpool_metrics::check).transpose().map_err(UsageError::new)?;
    // Inherited by all threads started from here on.
    let signals = ending_signals();
    signals.thread_block()?;
    let mount_point = MountPoint::claim(&options.mount_point)?;
    let client = ClientOptions::new(&options.dir, options.rack)
        .threads(options.threads.saturating_add(OTHER_THREADS));
    let pool = Arc::new(Pool::open(client).context("the pool can't be opened")?);
    let weak_pool = Arc::downgrade(&pool);
    // The user who creates the volume must be able to use it, and no other user need be allowed in.
    let owner = Caller::new(geteuid().as_raw(), getegid().as_raw());
    let volume = Volume::open_or_create_for(pool, &options.volume, owner)
        .context("the file system can't be opened")?
        .with_nameless_kept();
    let shell = Arc::new(Shell::new(volume));
    if let Some(address) = options.metrics {
        let shown = MountMetrics { metrics: Arc::clone(&shell.counts), pool: weak_pool };
        rackpool_metrics::start(address, Arc::new(shown))?;
    }
    let session = Session::new(Handshake, &mount_point.path, &session::config(options))
        .with_context(|| {
            format!(
                "can't mount at {}: is /dev/fuse there, and fuse3 installed?",
                mount_point.path.display()
            )
        })?;
    let watcher = Watcher::start(&mount_point)?;
    serve(session, &shell, &mount_point, options)?;
    drop(watcher);
    // All threads that shared it have ended.
    if let Some(shell) = Arc::into_inner(shell) {
        shell.close()?;
    }
    Ok(())
}

fn ending_signals() -> SigSet {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals
}

/// Serves until the kernel has released the mount.
fn serve(
    session: Session<Handshake>,
    shell: &Arc<Shell>,
    mount_point: &MountPoint,
    options: &MountOptions,
) -> anyhow::Result<()> {
    let ended = AtomicBool::new(false);
    let device = Device::of(session.as_fd()).context("the mount has no descriptor")?;
    let notifier = session.notifier();
    let outcome = std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let outcome = serve_requests(&device, shell, options.threads);
            // After a failure of a thread the kernel may still hold the mount.
            drop(session);
            shell.end_locks();
            ended.store(true, Ordering::Release);
            // Wakes the thread that waits for signals.
            let _ = kill(Pid::this(), Signal::SIGTERM);
            outcome
        });
        scope.spawn(|| shell.keep_locks(&notifier));
        let housekeeper = scope.spawn(|| keep_house(shell, &notifier, &ended));
        if options.stop_with_stdin {
            // This thread may outlive the mount; it ends with the process.
            std::thread::spawn(stop_with_stdin);
        }
        // This accesses the mount itself, which answers by now.
        set_read_ahead(&mount_point.path, options.read_ahead);
        say_ready(mount_point);
        wait_for_end(&ended, mount_point);
        housekeeper.thread().unpark();
        serving.join()
    });
    let outcome = outcome.map_err(|_| anyhow::anyhow!("a thread of the mount panicked"))?;
    outcome.context("the kernel's requests could not be read")
}

/// Serves requests with `threads` threads, until all of them have ended.
fn serve_requests(device: &Device, shell: &Shell, threads: u16) -> std::io::Result<()> {
    let serve = || device.serve(|header, fields, reply| shell.answer(*header, fields, reply));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(serve)).collect();
        let ends = threads.into_iter().map(|thread| {
            let panicked = |_| Err(std::io::Error::other("a thread of the mount panicked"));
            thread.join().unwrap_or_else(panicked)
        });
        ends.fold(Ok(()), Result::and)
    })
}

/// Sends SIGTERM to this process when its standard input ends.
fn stop_with_stdin() {
    wait_for_end_of_input();
    let _ = kill(Pid::this(), Signal::SIGTERM);
}

fn say_ready(mount_point: &MountPoint) {
    rackpool_output::banner(format_args!("{} is mounted", mount_point.path.display()));
}

/// Waits for a signal, then for the kernel, which keeps the mount while programs have files open
/// there. A second signal ends the process at once.
fn wait_for_end(ended: &AtomicBool, mount_point: &MountPoint) {
    let signals = ending_signals();
    let mut is_first = true;
    while !ended.load(Ordering::Acquire) {
        // SYNC: pairs with the store in `serve`.
        if signals.wait().is_err() || ended.load(Ordering::Acquire) {
            continue;
        }
        if !is_first {
            tracing::warn!("a second signal ended the mount while programs have files open in it");
            rackpool_output::flush();
            std::process::exit(1);
        }
        is_first = false;
        if let Err(error) = detach(&mount_point.path) {
            tracing::error!("can't unmount: {}", chain(error.as_ref()));
        }
    }
}

/// Runs the housekeeping until the mount has ended.
fn keep_house(shell: &Shell, notifier: &Notifier, ended: &AtomicBool) {
    // SYNC: pairs with the store in `serve`.
    while !ended.load(Ordering::Acquire) {
        std::thread::park_timeout(HOUSEKEEPING);
        shell.keep_house(notifier);
    }
}
