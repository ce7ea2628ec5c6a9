//! Memory of a `device_dax` character device, which the kernel does not manage. A device has no
//! length that can be set and no name for its contents, so the last alignment unit holds a mark
//! with the id of the memory.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rackpool_model::MemoryId;
use rackpool_sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64;

use super::error::system;
use super::{KernelPages, MemoryError, MemoryLock, MemoryPlace, RackMemory};
use crate::host::HostFiles;
use crate::{Mapping, OutsideMapping, file};

const MAGIC: u64 = u64::from_le_bytes(*b"rackpdax");

/// The kernel's description of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DaxDevice {
    bytes: u64,
    /// Offsets and lengths of mappings must be multiples of this (bytes).
    align: u64,
}

impl DaxDevice {
    fn pages(self) -> KernelPages {
        KernelPages::new(self.align, "the alignment of the device")
    }
}

/// The size in bytes of the dax device behind a descriptor; `None` for any other file.
#[must_use]
pub fn device_bytes(file: impl AsFd, machine: &HostFiles) -> Option<u64> {
    let file = File::from(file.as_fd().try_clone_to_owned().ok()?);
    examine(&file, Path::new(""), machine).ok().map(|device| device.bytes)
}

/// A device that this process has opened and locked.
struct OpenDevice {
    file: File,
    device: DaxDevice,
    lock: MemoryLock,
}

/// The mapped parts of a device.
struct DeviceMappings {
    frames: Mapping,
    /// The last piece, which holds the mark.
    mark: Mapping,
}

fn examine(file: &File, path: &Path, machine: &HostFiles) -> Result<DaxDevice, MemoryError> {
    let refuse = |why: &str| MemoryError::NotDax { path: path.to_path_buf(), why: why.into() };
    let found = file.metadata().map_err(system("examine", path.display()))?;
    if !found.file_type().is_char_device() {
        return Err(refuse("no character device"));
    }
    let number = found.rdev();
    let base: PathBuf =
        format!("dev/char/{}:{}", rustix::fs::major(number), rustix::fs::minor(number)).into();
    let subsystem = std::fs::canonicalize(machine.sys(base.join("subsystem")));
    if !subsystem.is_ok_and(|path| path.ends_with("dax")) {
        return Err(refuse("a device of another kind"));
    }
    let bytes = machine.sys_number(base.join("size")).ok_or_else(|| refuse("it has no size"))?;
    let align = machine
        .sys_number(base.join("align"))
        .or_else(|| machine.sys_number(base.join("device/align")))
        .filter(|align| align.is_power_of_two() && *align >= 4096)
        .ok_or_else(|| refuse("it has no alignment"))?;
    Ok(DaxDevice { bytes, align })
}

pub(super) fn create(
    place: &MemoryPlace<'_>,
    path: &Path,
    memory: MemoryId,
) -> Result<RackMemory, MemoryError> {
    let OpenDevice { file, device, lock } = open_device(place, path)?;
    let DeviceMappings { frames: mapping, mark } = map(place, &file, device, path)?;
    let mut warnings = Vec::new();
    if owner(&mark)?.is_some() {
        warnings.push(format!(
            "{} held the memory of another rack or of an earlier boot: it is overwritten",
            path.display()
        ));
    }
    set_owner(&mark, None)?;
    clear(&mapping)?;
    set_owner(&mark, Some(memory))?;
    place.link(path)?;
    Ok(RackMemory { mapping, file, lock, pages: device.pages(), warnings, node: None })
}

pub(super) fn open(
    place: &MemoryPlace<'_>,
    path: &Path,
    memory: MemoryId,
) -> Result<RackMemory, MemoryError> {
    let OpenDevice { file, device, lock } = open_device(place, path)?;
    let DeviceMappings { frames: mapping, mark } = map(place, &file, device, path)?;
    if owner(&mark)? != Some(memory) {
        return Err(MemoryError::DaxForeign(path.to_path_buf()));
    }
    let pages = device.pages();
    Ok(RackMemory { mapping, file, lock, pages, warnings: Vec::new(), node: None })
}

fn open_device(place: &MemoryPlace<'_>, path: &Path) -> Result<OpenDevice, MemoryError> {
    let file = file::open(path)?.ok_or_else(|| MemoryError::NotDax {
        path: path.to_path_buf(),
        why: "it is not there".into(),
    })?;
    let device = examine(&file, path, place.machine)?;
    place.require_multiple(device.align)?;
    if place.bytes.checked_add(device.align).is_none_or(|needed| needed > device.bytes) {
        let DaxDevice { bytes, align } = device;
        return Err(MemoryError::DaxTooSmall { path: path.to_path_buf(), bytes, align });
    }
    let lock = MemoryLock::of(path)?;
    Ok(OpenDevice { file, device, lock })
}

/// Maps the frames and the mark.
fn map(
    place: &MemoryPlace<'_>,
    file: &File,
    device: DaxDevice,
    path: &Path,
) -> Result<DeviceMappings, MemoryError> {
    let frames = Mapping::new(file, place.bytes).map_err(system("map", path.display()))?;
    // The device's size need not be a multiple of its alignment.
    let last = (device.bytes / device.align - 1) * device.align;
    let mark = Mapping::from(file, last, device.align).map_err(system("map", path.display()))?;
    Ok(DeviceMappings { frames, mark })
}

/// Reads the mark: the id of the memory on the device, or `None` without a valid mark. The mark
/// consists of the magic, the two halves of the id, and a checksum of these halves.
fn owner(mark: &Mapping) -> Result<Option<MemoryId>, OutsideMapping> {
    let cells = mark.view::<[AtomicU64; 4]>(0)?;
    // SYNC: pairs with the stores in `set_owner`.
    let words = std::array::from_fn::<u64, 4, _>(|i| cells[i].load(Ordering::Acquire));
    let is_whole = words[0] == MAGIC && words[3] == checksum(words[1], words[2]);
    Ok(is_whole.then(|| MemoryId(u128::from(words[1]) | (u128::from(words[2]) << 64))))
}

fn set_owner(mark: &Mapping, memory: Option<MemoryId>) -> Result<(), OutsideMapping> {
    let cells = mark.view::<[AtomicU64; 4]>(0)?;
    #[expect(clippy::cast_possible_truncation, reason = "the two halves of 128 bits")]
    let words = memory.map_or([0; 4], |MemoryId(id)| {
        let (low, high) = (id as u64, (id >> 64) as u64);
        [MAGIC, low, high, checksum(low, high)]
    });
    for (cell, word) in cells.iter().zip(words) {
        // SYNC: pairs with the loads in `owner`.
        cell.store(word, Ordering::Release);
    }
    Ok(())
}

fn checksum(low: u64, high: u64) -> u64 {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&low.to_le_bytes());
    bytes[8..].copy_from_slice(&high.to_le_bytes());
    xxh3_64(&bytes)
}

fn clear(mapping: &Mapping) -> Result<(), OutsideMapping> {
    let zeros = vec![0; 1 << 20];
    let mut offset = 0;
    while offset < mapping.len() {
        let len = zeros.len().min(usize::try_from(mapping.len() - offset).unwrap_or(usize::MAX));
        mapping.write(offset, &zeros[..len])?;
        offset += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::unix::fs::symlink;

    use rackpool_model::RackId;
    use rackpool_testing::skipped;

    use super::*;
    use crate::directory::RackDirectory;
    use crate::host::tests::fixture;
    use crate::memory::MemoryKind;

    fn zero_device() -> File {
        file::open(Path::new("/dev/zero")).unwrap().unwrap()
    }

    /// A computer that describes `/dev/zero` (1:5) as such a device.
    fn machine(size: &str, align: &str, subsystem: &str) -> (tempfile::TempDir, HostFiles) {
        let (folder, machine) = fixture(&[
            ("sys/dev/char/1:5/size", size),
            ("sys/dev/char/1:5/align", align),
            (&format!("sys/bus/{subsystem}/uevent"), ""),
        ]);
        symlink(
            folder.path().join("sys/bus").join(subsystem),
            machine.sys("dev/char/1:5/subsystem"),
        )
        .unwrap();
        (folder, machine)
    }

    #[test]
    fn a_device_is_known_by_what_the_kernel_says_of_it() {
        let path = Path::new("/dev/zero");
        let (_folder, good) = machine("1073741824\n", "2097152\n", "dax");
        let expected = DaxDevice { bytes: 1 << 30, align: 2 << 20 };
        assert_eq!(examine(&zero_device(), path, &good).unwrap(), expected);
        assert_eq!(device_bytes(zero_device(), &good), Some(1 << 30));
        for (size, align, subsystem, why) in [
            ("1G", "4096", "dax", "no size"),
            ("4096", "0", "dax", "no alignment"),
            ("4096", "5000", "dax", "no alignment"),
            ("4096", "4096", "mem", "another kind"),
        ] {
            let (_folder, bad) = machine(size, align, subsystem);
            let text = examine(&zero_device(), path, &bad).unwrap_err().to_string();
            assert!(text.contains(why) && text.contains("daxctl"), "{text}");
        }
        let (_folder, good) = machine("4096", "4096", "dax");
        let file = tempfile::tempfile().unwrap();
        assert!(examine(&file, path, &good).unwrap_err().to_string().contains("no character"));
    }

    /// `/dev/zero` under a name of its own, which no other process locks, stands in for a device
    /// until it would be mapped.
    #[test]
    fn a_device_is_locked_and_measured_against_its_size() {
        use nix::sys::stat::{Mode, SFlag, makedev, mknod};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dax0.0");
        let made = mknod(&path, SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, makedev(1, 5));
        if let Err(error) = made.map_err(io::Error::from).and_then(|()| File::open(&path).map(drop))
        {
            return skipped(&format!("a device under a name of its own: {error}"));
        }
        let (_folder, machine) = machine("9437184\n", "2097152\n", "dax");
        let directory = RackDirectory::new(folder.path(), RackId(0));
        let kind = MemoryKind::Dax(path.clone());
        let place = |bytes| MemoryPlace::new(&kind, &directory, bytes, &machine);
        let refused = |bytes| place(bytes).create(MemoryId(1)).unwrap_err().to_string();
        for too_much in [8 << 20, 1 << 50, !0x1f_ffff] {
            assert!(refused(too_much).contains("--memory 6291456"), "{}", refused(too_much));
        }
        assert!(refused(3 << 20).contains("needs a multiple of 2 MiB"));
        let OpenDevice { file: _file, device, lock } = open_device(&place(6 << 20), &path).unwrap();
        assert_eq!(device, DaxDevice { bytes: 9 << 20, align: 2 << 20 });
        assert!(refused(6 << 20).contains("in use by another rack daemon"));
        drop(lock);
        drop(open_device(&place(6 << 20), &path).unwrap());
    }

    #[test]
    fn the_mark_says_whose_memory_it_is() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mark = Mapping::from(&file, 4096, 4096).unwrap();
        assert_eq!(owner(&mark).unwrap(), None);
        let id = MemoryId(u128::MAX - 17);
        set_owner(&mark, Some(id)).unwrap();
        assert_eq!(owner(&mark).unwrap(), Some(id));
        // The layout of docs/design/rack-memory.md.
        let mut bytes = [0; 32];
        mark.read(0, &mut bytes).unwrap();
        assert_eq!((&bytes[..8], &bytes[8..24]), (&b"rackpdax"[..], &id.0.to_le_bytes()[..]));
        for byte in 0..32 {
            let mut found = [0];
            mark.read(byte, &mut found).unwrap();
            mark.write(byte, &[found[0] ^ 4]).unwrap();
            assert_eq!(owner(&mark).unwrap(), None, "byte {byte}");
            mark.write(byte, &found).unwrap();
        }
        set_owner(&mark, None).unwrap();
        assert_eq!(owner(&mark).unwrap(), None);
    }

    #[test]
    fn clearing_reaches_the_last_byte() {
        let file = tempfile::tempfile().unwrap();
        let len = (3 << 20) + 4096;
        file.set_len(len).unwrap();
        let memory = Mapping::new(&file, len).unwrap();
        for offset in [0, 1 << 20, len - 1] {
            memory.write(offset, &[7]).unwrap();
        }
        clear(&memory).unwrap();
        for offset in [0, 1 << 20, len - 1] {
            let mut byte = [1];
            memory.read(offset, &mut byte).unwrap();
            assert_eq!(byte, [0]);
        }
    }
}
