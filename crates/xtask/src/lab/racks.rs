//! Both racks, from their boot to the end of their scripts.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use super::accelerator::Accelerator;
use super::cache::Cache;
use super::ctrl_c::{Interrupts, PAUSE, Running};
use super::folder::{RunFolder, Tail};
use super::{RACKS, guest, kernel};

const GUEST: &str = include_str!("../../../../deploy/lab/guest.sh");
/// How long the other rack may go on after one has failed: it may be waiting for it, and finds out.
const GRACE: Duration = Duration::from_secs(10);
/// Lines of each log that a failure prints.
const SHOWN: usize = 30;
/// Exit status of a script that gave up because the other rack's script had failed.
const GAVE_UP: i32 = 3;

/// The work of both racks.
#[derive(Clone, Debug)]
pub(super) struct Errand {
    /// The script of each rack, for bash.
    pub(super) scripts: [String; 2],
    /// Assignments in bash that precede the scripts.
    pub(super) environment: String,
    /// The limit for everything, including the boot.
    pub(super) limit: Duration,
}

/// Boots both racks in the folder `lab`, runs the errand, and prints their output.
///
/// # Errors
/// When a script fails, a guest ends by itself, the limit is exceeded, or a signal arrives; prints
/// the ends of the logs. In all cases the guests have ended and the logs are kept.
pub(super) fn run(lab: &Path, errand: &Errand, interrupts: &Interrupts) -> Result<()> {
    run_in(lab, errand, interrupts, |folder| start(folder, interrupts))
}

/// The same with guests that `start` starts.
fn run_in(
    lab: &Path,
    errand: &Errand,
    interrupts: &Interrupts,
    start: impl FnOnce(&RunFolder) -> Result<Vec<Running>>,
) -> Result<()> {
    let folder = RunFolder::make(lab)?;
    folder.write("guest.sh", GUEST)?;
    folder.write("environment", &errand.environment)?;
    for rack in RACKS {
        folder.write(&format!("script{rack}"), &errand.scripts[rack])?;
    }
    let mut guests = start(&folder)?;
    let done = watch(&folder, &mut guests, errand.limit, interrupts);
    drop(guests);
    if done.is_err() {
        // The log with the reason is printed last, where it is easiest to find.
        let gave_up = folder.status(1)? == Some(GAVE_UP);
        for rack in if gave_up { [1, 0] } else { [0, 1] } {
            show_end(&folder, rack)?;
        }
    }
    println!("lab: logs in {}", folder.keep_logs()?.display());
    done
}

fn start(folder: &RunFolder, interrupts: &Interrupts) -> Result<Vec<Running>> {
    let cache = Cache::open(interrupts)?;
    let cached = kernel::boot(&cache, interrupts)?;
    let accelerator = Accelerator::choose(&cache, &cached, interrupts)?;
    // Another lab may clear the cache while these guests boot.
    let boot = cached.copy_to(folder.path())?;
    println!("lab: booting two racks, {accelerator}");
    let start = |(rack, end)| guest::start(&folder.place(rack), &boot, accelerator, end);
    RACKS.into_iter().zip(guest::cable()?).map(start).collect()
}

/// Waits for both scripts, and prints their output meanwhile.
fn watch(
    folder: &RunFolder,
    guests: &mut [Running],
    limit: Duration,
    interrupts: &Interrupts,
) -> Result<()> {
    let mut outputs = RACKS.map(|rack| Tail::of(folder.log(rack, "output")));
    let mut end = Instant::now() + limit;
    let mut failed_at = None;
    loop {
        // The statuses are read before the output: the output of an ended script is then complete.
        let statuses = [folder.status(0)?, folder.status(1)?];
        for (rack, output) in outputs.iter_mut().enumerate() {
            output.lines()?.iter().for_each(|line| println!("rack {rack} | {line}"));
        }
        let now = Instant::now();
        if let Some(outcome) = outcome(statuses, now >= end) {
            return outcome;
        }
        if statuses.iter().flatten().any(|status| *status != 0) {
            end = end.min(*failed_at.get_or_insert(now) + GRACE);
        }
        interrupts.check()?;
        for (rack, guest) in guests.iter_mut().enumerate() {
            if let Some(status) = guest.0.try_wait()? {
                bail!("rack {rack} ended by itself, QEMU with {status}: see its console");
            }
        }
        thread::sleep(PAUSE);
    }
}

/// The result of the scripts' exit statuses; `None` while a script runs and time is left.
fn outcome(statuses: [Option<i32>; 2], is_over: bool) -> Option<Result<()>> {
    let has_ended = statuses.iter().all(Option::is_some);
    if !has_ended && !is_over {
        return None;
    }
    let told = RACKS.map(|rack| match statuses[rack] {
        Some(GAVE_UP) => format!("rack {rack} gave up, for the other had failed"),
        Some(status) => format!("rack {rack} ended with {status}"),
        None => format!("rack {rack} did not end in time"),
    });
    let is_good = statuses.iter().all(|status| *status == Some(0));
    Some(if is_good { Ok(()) } else { Err(anyhow!(told.join(", "))) })
}

fn show_end(folder: &RunFolder, rack: usize) -> Result<()> {
    for name in ["console", "output"] {
        let lines = Tail::of(folder.log(rack, name)).lines()?;
        let from = lines.len().saturating_sub(SHOWN);
        let what = if lines.is_empty() { "is empty" } else { "ends" };
        println!("---- the {name} of rack {rack} {what} ----");
        lines[from..].iter().for_each(|line| println!("{line}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use nix::sys::signal::{Signal, raise};
    use nix::sys::stat::fstat;

    use super::*;

    /// Stands in for a guest: it reports its process id and runs until it is killed.
    const STAND_IN: &str = "echo $$ >\"$0.new\"; mv \"$0.new\" \"$0\"; exec sleep 1000";
    const TIMEOUT: Duration = Duration::from_secs(20);

    /// The processes and sockets that a lab uses besides its folder.
    #[derive(Default)]
    struct Possessions {
        guests: Vec<String>,
        /// The ends of the cable, by the inode numbers with which the kernel lists sockets.
        cable: Vec<u64>,
    }

    impl Possessions {
        fn start(&mut self, folder: &RunFolder) -> Result<Vec<Running>> {
            let ends = guest::cable()?;
            for end in &ends {
                self.cable.push(fstat(end.as_fd())?.st_ino);
            }
            let start = |(rack, end)| {
                let mut command = guest::mortal("sh");
                command.args(["-c", STAND_IN]).arg(folder.log(rack, "id"));
                guest::plug_in(command, end)
            };
            let guests = RACKS.into_iter().zip(ends).map(start).collect::<Result<_>>()?;
            for rack in RACKS {
                let file = folder.log(rack, "id");
                let deadline = Instant::now() + TIMEOUT;
                while !file.exists() {
                    assert!(Instant::now() < deadline, "guest {rack} does not run");
                    thread::sleep(PAUSE);
                }
                self.guests.push(fs::read_to_string(file)?.trim().to_owned());
            }
            assert!(self.guests_run() && self.cable_is_there());
            Ok(guests)
        }

        fn guests_run(&self) -> bool {
            self.guests.iter().any(|id| Path::new("/proc").join(id).exists())
        }

        fn cable_is_there(&self) -> bool {
            let sockets = fs::read_to_string("/proc/net/unix").unwrap();
            let mut numbers = sockets.lines().filter_map(|line| line.split_whitespace().nth(6));
            numbers.any(|number| number.parse().is_ok_and(|number| self.cable.contains(&number)))
        }
    }

    #[test]
    fn an_interrupted_lab_leaves_no_guest_no_cable_and_no_folder_but_its_logs() {
        for (signal, name) in
            [(Signal::SIGINT, "SIGINT"), (Signal::SIGTERM, "SIGTERM"), (Signal::SIGHUP, "SIGHUP")]
        {
            let lab = tempfile::tempdir().unwrap();
            let interrupts = Interrupts::catch().unwrap();
            let scripts = [String::new(), String::new()];
            let errand = Errand { scripts, environment: String::new(), limit: TIMEOUT };
            let mut had = Possessions::default();
            let done = run_in(lab.path(), &errand, &interrupts, |folder| {
                let guests = had.start(folder);
                raise(signal)?;
                guests
            });
            assert_eq!(done.unwrap_err().to_string(), format!("interrupted by {name}"));
            assert_eq!((had.guests.len(), had.cable.len()), (2, 2));
            assert!(!had.guests_run(), "{:?} run", had.guests);
            // A program that another test is starting may hold the cable until its exec.
            let deadline = Instant::now() + TIMEOUT;
            while had.cable_is_there() {
                assert!(Instant::now() < deadline, "the cable is still there");
                thread::sleep(PAUSE);
            }
            let left = fs::read_dir(lab.path()).unwrap().map(|entry| entry.unwrap().file_name());
            assert_eq!(left.collect::<Vec<_>>(), ["logs"]);
        }
    }

    #[test]
    fn both_scripts_have_to_succeed_in_time() {
        assert!(outcome([Some(0), None], false).is_none());
        assert!(outcome([Some(0), Some(0)], false).unwrap().is_ok());
        assert!(outcome([Some(0), Some(0)], true).unwrap().is_ok());
        let told = |statuses, is_over| outcome(statuses, is_over).unwrap().unwrap_err().to_string();
        assert_eq!(told([Some(0), Some(2)], false), "rack 0 ended with 0, rack 1 ended with 2");
        assert_eq!(
            told([Some(3), Some(1)], false),
            "rack 0 gave up, for the other had failed, rack 1 ended with 1"
        );
        assert_eq!(told([None, Some(0)], true), "rack 0 did not end in time, rack 1 ended with 0");
    }
}
