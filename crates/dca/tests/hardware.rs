//! The hardware commands' library on machines made of files.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rackpool_dca::WayMask;
use rackpool_dca::hardware::{
    HardwareError, Held, MsrFiles, Plan, Registers, State, leftover, restore,
};
use rackpool_shm::host::HostFiles;

const SKYLAKE: &str = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n";

/// A machine with two sockets, 11 ways, CPUs 0 and 8 their first ones.
struct Made {
    folder: tempfile::TempDir,
    machine: HostFiles,
}

impl Made {
    fn new(cpuinfo: &str, shareable: &str) -> Self {
        let cache = "sys/devices/system/cpu/cpu0/cache/index3";
        let topology =
            |cpu| format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        let files = [
            ("proc/cpuinfo".to_owned(), cpuinfo),
            (topology(0), "0\n"),
            (topology(1), "0\n"),
            (topology(8), "1\n"),
            (topology(9), "1\n"),
            (format!("{cache}/type"), "Unified\n"),
            (format!("{cache}/level"), "3\n"),
            (format!("{cache}/size"), "25344K\n"),
            (format!("{cache}/ways_of_associativity"), "11\n"),
            ("sys/fs/resctrl/info/L3/cbm_mask".into(), "7ff\n"),
            ("sys/fs/resctrl/info/L3/shareable_bits".into(), shareable),
            ("sys/fs/resctrl/info/L3/min_cbm_bits".into(), "1\n"),
            ("sys/fs/resctrl/schemata".into(), "    L3:0=7ff;1=7ff\n"),
            ("sys/fs/resctrl/batch/schemata".into(), "L3:0=00f;1=00f\n"),
        ];
        let folder = rackpool_testing::folder_of(&files);
        for cpu in [0, 8] {
            let registers = folder.path().join(format!("dev/cpu/{cpu}"));
            fs::create_dir_all(&registers).unwrap();
            let file = fs::File::create(registers.join("msr")).unwrap();
            file.write_all_at(&0x600_u64.to_le_bytes(), 0xC8B).unwrap();
        }
        let machine = HostFiles::at(folder.path());
        Self { folder, machine }
    }

    fn msr(&self) -> MsrFiles {
        MsrFiles(self.machine.clone())
    }

    fn note(&self) -> PathBuf {
        self.folder.path().join("note")
    }

    fn masks(&self) -> Vec<u64> {
        [0, 8].map(|cpu| self.msr().read(cpu).unwrap()).to_vec()
    }

    fn schemata(&self) -> String {
        fs::read_to_string(self.machine.sys("fs/resctrl/schemata")).unwrap().trim().to_owned()
    }

    fn plan(&self, ways: u32) -> Plan {
        Plan::ways(&State::of(&self.machine), &mut self.msr(), ways).unwrap()
    }
}

#[test]
fn devices_get_the_highest_ways_and_lose_none() {
    let made = Made::new(SKYLAKE, "600\n");
    let state = State::of(&made.machine);
    assert_eq!(state.sockets.iter().map(|socket| socket.cpu).collect::<Vec<_>>(), [0, 8]);
    for (count, mask) in [(2, 0x600), (4, 0x780), (11, 0x7ff)] {
        let plan = made.plan(count);
        assert_eq!(plan.is_empty(), count == 2, "{plan}");
        assert!(plan.registers.iter().all(|change| change.new == WayMask(mask)), "{plan}");
    }
    for count in [0, 1, 12] {
        let refused = Plan::ways(&state, &mut made.msr(), count).unwrap_err().to_string();
        assert!(refused.contains("from 2 to 11"), "{refused}");
    }
}

#[test]
fn no_way_that_devices_have_is_taken_from_them() {
    let made = Made::new(SKYLAKE, "600\n");
    let state = State::of(&made.machine);
    for old in 1..0x800_u32 {
        let mut registers = Fake::new(old.into());
        for count in WayMask(old).count()..=11 {
            let plan = Plan::ways(&state, &mut registers, count).unwrap();
            for change in plan.registers {
                assert_eq!(change.new.0 & old, old);
                assert!(change.new.0 < 0x800 && change.new.count() >= count);
            }
        }
    }
}

#[test]
fn an_unknown_processor_is_refused_with_its_name() {
    let amd = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n";
    let made = Made::new(amd, "600\n");
    let state = State::of(&made.machine);
    let refused = Plan::ways(&state, &mut made.msr(), 4).unwrap_err().to_string();
    assert!(refused.contains("AuthenticAMD, family 25, model 17"), "{refused}");
    let nothing = Made::new("", "600\n");
    let refused = State::of(&nothing.machine).check_known().unwrap_err().to_string();
    assert!(refused.contains("/proc/cpuinfo"), "{refused}");
}

#[test]
fn registers_that_can_not_be_reached_name_what_is_missing() {
    let made = Made::new(SKYLAKE, "600\n");
    fs::remove_dir_all(made.folder.path().join("dev")).unwrap();
    let error = State::of(&made.machine).ways(&mut made.msr()).unwrap_err().to_string();
    assert!(error.contains("modprobe msr") && error.contains("cpu/0/msr"), "{error}");
}

#[test]
fn a_change_is_applied_and_undone() {
    let made = Made::new(SKYLAKE, "600\n");
    let state = State::of(&made.machine);
    let plan = made.plan(4).without_programs(&state, WayMask(0x780)).unwrap();
    let mut msr = made.msr();
    let held = Held::apply(&plan, &made.machine, &mut msr, &made.note()).unwrap();
    assert_eq!((made.masks(), made.schemata()), (vec![0x780, 0x780], "L3:0=7f;1=7f".into()));
    assert!(leftover(&made.note()));
    let mut other = made.msr();
    let again = Held::apply(&plan, &made.machine, &mut other, &made.note());
    assert!(matches!(again, Err(HardwareError::Leftover(_))));
    assert_eq!(held.undo().unwrap(), []);
    assert_eq!((made.masks(), made.schemata()), (vec![0x600, 0x600], "L3:0=7ff;1=7ff".into()));
    assert!(!leftover(&made.note()));
}

#[test]
fn masks_that_the_kernel_pads_with_zeros_are_those_that_were_set() {
    let made = Made::new(SKYLAKE, "600\n");
    let state = State::of(&made.machine);
    let plan = Plan::default().without_programs(&state, WayMask(0x780)).unwrap();
    let mut msr = made.msr();
    let held = Held::apply(&plan, &made.machine, &mut msr, &made.note()).unwrap();
    assert_eq!(made.schemata(), "L3:0=7f;1=7f");
    fs::write(made.machine.sys("fs/resctrl/schemata"), "    L3:0=07f;1=07f\n").unwrap();
    assert_eq!(held.undo().unwrap(), []);
    assert_eq!(made.schemata(), "L3:0=7ff;1=7ff");
}

#[test]
fn programs_get_ways_without_gaps_or_the_change_is_refused() {
    let made = Made::new(SKYLAKE, "600\n");
    let state = State::of(&made.machine);
    let resctrl = state.resctrl.as_ref().unwrap();
    assert_eq!(resctrl.overlapping(WayMask(0x600)), [""]);
    assert_eq!(resctrl.overlapping(WayMask(0x00f)), ["", "batch"]);
    let programs = |devices| {
        Plan::default().without_programs(&state, WayMask(devices)).map(|plan| plan.programs)
    };
    assert_eq!(programs(0x600).unwrap().unwrap().1, "L3:0=1ff;1=1ff");
    assert_eq!(programs(0x010).unwrap().unwrap().1, "L3:0=7e0;1=7e0");
    assert!(programs(0x7ff).unwrap_err().to_string().contains("give devices fewer"));
}

/// A register for each CPU, until a number of accesses are used up: then the process is dead.
struct Fake {
    values: BTreeMap<u32, u64>,
    accesses: usize,
}

impl Fake {
    fn new(value: u64) -> Self {
        Self { values: [(0, value), (8, value)].into(), accesses: usize::MAX }
    }

    fn spend(&mut self, cpu: u32) -> Result<(), HardwareError> {
        let dead = HardwareError::NotTaken { cpu, wanted: 0, found: 0 };
        self.accesses = self.accesses.checked_sub(1).ok_or(dead)?;
        Ok(())
    }
}

impl Registers for Fake {
    fn read(&mut self, cpu: u32) -> Result<u64, HardwareError> {
        self.spend(cpu)?;
        Ok(self.values[&cpu])
    }

    fn write(&mut self, cpu: u32, value: u64) -> Result<(), HardwareError> {
        self.spend(cpu)?;
        self.values.insert(cpu, value);
        Ok(())
    }
}

#[test]
fn killed_at_any_step_a_change_is_undone_by_the_next_command() {
    let made = Made::new(SKYLAKE, "600\n");
    let plan = made.plan(6);
    for accesses in 0..12 {
        let mut registers = Fake::new(0x600);
        registers.accesses = accesses;
        // From the step at which the accesses end on, nothing reaches the machine.
        let held = Held::apply(&plan, &made.machine, &mut registers, &made.note());
        drop(held.map(Held::undo));
        registers.accesses = usize::MAX;
        if leftover(&made.note()) {
            assert_eq!(restore(&made.machine, &mut registers, &made.note()).unwrap(), []);
        }
        assert!(registers.values.values().all(|value| *value == 0x600), "{accesses} accesses");
        assert!(!leftover(&made.note()));
    }
}

#[test]
fn what_someone_else_changed_meanwhile_is_left_and_named() {
    let made = Made::new(SKYLAKE, "600\n");
    let plan = made.plan(4);
    let mut msr = made.msr();
    let held = Held::apply(&plan, &made.machine, &mut msr, &made.note()).unwrap();
    made.msr().write(8, 0x7c0).unwrap();
    let left = held.undo().unwrap();
    assert_eq!(left.len(), 1);
    assert!(left[0].0.contains("CPU 8 has 0x7c0"), "{left:?}");
    assert_eq!(made.masks(), [0x600, 0x7c0]);
}

#[test]
fn a_damaged_note_changes_nothing() {
    let made = Made::new(SKYLAKE, "600\n");
    fs::write(made.note(), "register 0 600 780\nregister x\n").unwrap();
    let error = restore(&made.machine, &mut made.msr(), &made.note()).unwrap_err().to_string();
    assert!(error.contains("line 2"), "{error}");
    assert_eq!(made.masks(), [0x600, 0x600]);
}
