//! A change that is undone: its values before are noted, synced, before the first one is changed.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use rackpool_shm::host::HostFiles;

use super::resctrl::masks;
use super::{HardwareError, Plan, Registers};

/// An applied plan. [`Held::undo`] restores the values before; dropping it does, too.
pub struct Held<'a> {
    machine: HostFiles,
    registers: &'a mut dyn Registers,
    note: PathBuf,
    is_undone: bool,
}

/// A value that someone else changed meanwhile, and that was left as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover(pub String);

/// A line of the note: what had which value, and which one it got.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Noted {
    Register { cpu: u32, old: u64, new: u64 },
    Programs { old: String, new: String },
}

impl<'a> Held<'a> {
    /// Notes the values before, and applies the plan. If a step fails, those before are undone.
    ///
    /// # Errors
    /// If an earlier change was not undone, or a step fails.
    pub fn apply(
        plan: &Plan,
        machine: &HostFiles,
        registers: &'a mut dyn Registers,
        note: &Path,
    ) -> Result<Self, HardwareError> {
        if note.exists() {
            return Err(HardwareError::Leftover(note.to_path_buf()));
        }
        write_note(note, plan)?;
        let held = Self {
            machine: machine.clone(),
            registers,
            note: note.to_path_buf(),
            is_undone: false,
        };
        for change in &plan.registers {
            let (cpu, wanted) = (change.socket.cpu, u64::from(change.new.0));
            held.registers.write(cpu, wanted)?;
            let found = held.registers.read(cpu)?;
            if found != wanted {
                return Err(HardwareError::NotTaken { cpu, wanted, found });
            }
        }
        if let Some((_, new)) = &plan.programs {
            set_programs(machine, new)?;
        }
        Ok(held)
    }

    /// Restores the values before. Returns what someone else has changed meanwhile.
    ///
    /// # Errors
    /// If a value can't be restored; the note stays.
    pub fn undo(mut self) -> Result<Vec<Leftover>, HardwareError> {
        self.is_undone = true;
        restore(&self.machine, &mut *self.registers, &self.note)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if !self.is_undone {
            // The note stays if this fails, and `rackpool dca restore` tries again.
            let _ = restore(&self.machine, &mut *self.registers, &self.note);
        }
    }
}

/// Whether a change was not undone.
#[must_use]
pub fn leftover(note: &Path) -> bool {
    note.exists()
}

/// Restores the values of a note, the last one first, and removes it. A value that is neither the
/// noted one nor the one before was changed by someone else: it is left and returned. Repeated
/// after a kill it does the rest.
///
/// # Errors
/// If the note is damaged, or a value can't be restored.
pub fn restore(
    machine: &HostFiles,
    registers: &mut dyn Registers,
    note: &Path,
) -> Result<Vec<Leftover>, HardwareError> {
    let mut left = Vec::new();
    for noted in read_note(note)?.into_iter().rev() {
        match noted {
            Noted::Register { cpu, old, new } => {
                let found = registers.read(cpu)?;
                if found == new {
                    registers.write(cpu, old)?;
                } else if found != old {
                    left.push(Leftover(format!(
                        "register 0xC8B of CPU {cpu} has {found:#x}, not the {new:#x} that was set"
                    )));
                }
            }
            Noted::Programs { old, new } => {
                let found = programs(machine)?;
                if masks(&found) == masks(&new) {
                    set_programs(machine, &old)?;
                } else if masks(&found) != masks(&old) {
                    left.push(Leftover(format!("schemata is {found}, not the {new} that was set")));
                }
            }
        }
    }
    fs::remove_file(note).map_err(file("remove", note))?;
    Ok(left)
}

fn file<'a>(
    verb: &'static str,
    path: &'a Path,
) -> impl FnOnce(std::io::Error) -> HardwareError + 'a {
    move |source| HardwareError::File { verb, path: path.to_path_buf(), source }
}

fn schemata(machine: &HostFiles) -> PathBuf {
    machine.sys("fs/resctrl/schemata")
}

fn programs(machine: &HostFiles) -> Result<String, HardwareError> {
    let path = schemata(machine);
    let text = fs::read_to_string(&path).map_err(file("read", &path))?;
    let line = text.lines().map(str::trim).find(|line| line.starts_with("L3:"));
    Ok(line.unwrap_or_default().to_owned())
}

fn set_programs(machine: &HostFiles, line: &str) -> Result<(), HardwareError> {
    let path = schemata(machine);
    fs::write(&path, format!("{line}\n")).map_err(file("write", &path))
}

/// Writes the note whole or not at all, and syncs it.
fn write_note(note: &Path, plan: &Plan) -> Result<(), HardwareError> {
    let mut text = String::new();
    for change in &plan.registers {
        let (old, new) = (change.old.0, change.new.0);
        text.push_str(&format!("register {} {old:x} {new:x}\n", change.socket.cpu));
    }
    if let Some((old, new)) = &plan.programs {
        text.push_str(&format!("programs {old} {new}\n"));
    }
    let unfinished = note.with_extension("unfinished");
    let write = || {
        let mut file = fs::File::create(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, note)?;
        let folder = note.parent().map_or(Path::new("/"), |folder| folder);
        fs::File::open(folder)?.sync_all()
    };
    write().map_err(file("write", note))
}

fn read_note(note: &Path) -> Result<Vec<Noted>, HardwareError> {
    let text = fs::read_to_string(note).map_err(file("read", note))?;
    let parse = |(number, line): (usize, &str)| {
        let words: Vec<&str> = line.split(' ').collect();
        let number_of = |text: &str| u64::from_str_radix(text, 16).ok();
        let noted = match words.as_slice() {
            ["register", cpu, old, new] => cpu.parse().ok().and_then(|cpu| {
                Some(Noted::Register { cpu, old: number_of(old)?, new: number_of(new)? })
            }),
            ["programs", old, new] => {
                Some(Noted::Programs { old: (*old).into(), new: (*new).into() })
            }
            _ => None,
        };
        let (path, line) = (note.to_path_buf(), number + 1);
        noted.ok_or(HardwareError::Damaged { path, line })
    };
    text.lines().enumerate().map(parse).collect()
}
