//! The `rackpool-daemon` program.

use nix::sys::signal::SigSet;

fn main() -> std::process::ExitCode {
    // The parent process may have blocked the signals that stop the daemon; the mask is inherited.
    let _ = SigSet::all().thread_unblock();
    rackpool_output::run_server("rackpool-daemon", || {
        let options: rackpool_daemon::DaemonOptions = rackpool_config::parse("daemon");
        rackpool_daemon::run(&options)
    })
}
