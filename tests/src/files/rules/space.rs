//! Holes, fallocate(2), and the space that the file system reports.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use super::rules;
use crate::files::Rule;
use crate::files::place::{Place, open, refused, refused_with_one_of, stat};

pub(super) const RULES: &[Rule] = rules![
    holes_take_no_space,
    holes_are_found,
    seeking_data_behind_the_end_is_enxio,
    a_file_without_holes_ends_with_one,
    allocation_extends_with_zeros,
    allocation_can_keep_the_size,
    allocation_keeps_contents,
    punched_holes_read_as_zeros_and_give_space_back,
    zeroed_ranges_read_as_zeros,
    allocation_of_nothing_is_einval,
    allocation_of_what_is_read_only_is_ebadf,
    the_file_system_tells_its_space,
    very_sparse_files,
];

fn blocks(file: &File) -> i64 {
    rustix::fs::fstat(file).unwrap().st_blocks
}

fn filled(place: &Place, len: usize) -> File {
    let file = place.open_new("a");
    file.write_all_at(&vec![7; len], 0).unwrap();
    file.sync_all().unwrap();
    file
}

fn holes_take_no_space(place: &Place) {
    let file = place.open_new("a");
    file.set_len(1 << 30).unwrap();
    file.write_all_at(b"x", 512 << 20).unwrap();
    file.sync_all().unwrap();
    assert_eq!(stat(&place.path("a")).st_size, 1 << 30);
    assert!(blocks(&file) > 0 && blocks(&file) * 512 < 8 << 20, "{}", blocks(&file));
}

fn holes_are_found(place: &Place) {
    let file = place.open_new("a");
    file.set_len(8 << 20).unwrap();
    file.write_all_at(&[1; 4096], 4 << 20).unwrap();
    file.sync_all().unwrap();
    assert_eq!(seek(&file, SeekFrom::Data(0)).unwrap(), 4 << 20);
    assert_eq!(seek(&file, SeekFrom::Data((4 << 20) + 5)).unwrap(), (4 << 20) + 5);
    assert_eq!(seek(&file, SeekFrom::Hole(0)).unwrap(), 0);
    let hole = seek(&file, SeekFrom::Hole(4 << 20)).unwrap();
    assert!(((4 << 20) + 4096..=8 << 20).contains(&hole), "{hole}");
    refused(seek(&file, SeekFrom::Data(hole)), Errno::NXIO);
}

fn seeking_data_behind_the_end_is_enxio(place: &Place) {
    let file = filled(place, 100);
    for offset in [100, 101, 1 << 40] {
        refused(seek(&file, SeekFrom::Data(offset)), Errno::NXIO);
        refused(seek(&file, SeekFrom::Hole(offset)), Errno::NXIO);
    }
}

fn a_file_without_holes_ends_with_one(place: &Place) {
    let file = filled(place, 10_000);
    assert_eq!(seek(&file, SeekFrom::Hole(0)).unwrap(), 10_000);
    assert_eq!(seek(&file, SeekFrom::Data(9_999)).unwrap(), 9_999);
}

fn allocation_extends_with_zeros(place: &Place) {
    let file = filled(place, 10);
    fallocate(&file, FallocateFlags::empty(), 5, 100_000).unwrap();
    let contents = std::fs::read(place.path("a")).unwrap();
    assert_eq!(contents.len(), 100_005);
    assert!(contents[..10].iter().all(|byte| *byte == 7));
    assert!(contents[10..].iter().all(|byte| *byte == 0));
    assert!(blocks(&file) * 512 >= 100_005);
}

fn allocation_can_keep_the_size(place: &Place) {
    let file = filled(place, 10);
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 100_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10);
    file.set_len(50_000).unwrap();
    assert!(std::fs::read(place.path("a")).unwrap()[10..].iter().all(|byte| *byte == 0));
}

fn allocation_keeps_contents(place: &Place) {
    let file = filled(place, 100_000);
    fallocate(&file, FallocateFlags::empty(), 0, 50_000).unwrap();
    assert_eq!(std::fs::read(place.path("a")).unwrap(), vec![7; 100_000]);
}

fn punched_holes_read_as_zeros_and_give_space_back(place: &Place) {
    let file = filled(place, 6 << 20);
    let before = blocks(&file);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let (from, len) = ((1 << 20) + 100, (4 << 20) + 1);
    fallocate(&file, punch, from, len).unwrap();
    let contents = std::fs::read(place.path("a")).unwrap();
    let (from, to) = (usize::try_from(from).unwrap(), usize::try_from(from + len).unwrap());
    assert_eq!(contents.len(), 6 << 20);
    assert!(contents[..from].iter().chain(&contents[to..]).all(|byte| *byte == 7));
    assert!(contents[from..to].iter().all(|byte| *byte == 0));
    file.sync_all().unwrap();
    assert!(blocks(&file) < before, "{} of {before}", blocks(&file));
    fallocate(&file, punch, 6 << 20, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 6 << 20);
    refused(fallocate(&file, FallocateFlags::PUNCH_HOLE, 0, 1), Errno::OPNOTSUPP);
}

fn zeroed_ranges_read_as_zeros(place: &Place) {
    let file = filled(place, 20_000);
    match fallocate(&file, FallocateFlags::ZERO_RANGE, 5000, 10_000) {
        Ok(()) => {}
        // Not all file systems support it.
        Err(error) => return assert_eq!(error, Errno::OPNOTSUPP),
    }
    let contents = std::fs::read(place.path("a")).unwrap();
    assert!(contents[5000..15_000].iter().all(|byte| *byte == 0));
    assert!(contents[..5000].iter().chain(&contents[15_000..]).all(|byte| *byte == 7));
    let keep = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, keep, 19_000, 10_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 20_000);
    fallocate(&file, FallocateFlags::ZERO_RANGE, 19_000, 10_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 29_000);
}

fn allocation_of_nothing_is_einval(place: &Place) {
    let file = filled(place, 10);
    refused(fallocate(&file, FallocateFlags::empty(), 0, 0), Errno::INVAL);
    let far = u64::try_from(i64::MAX).unwrap();
    let refusals = [Errno::FBIG, Errno::INVAL];
    refused_with_one_of(fallocate(&file, FallocateFlags::empty(), far, 10), &refusals);
}

fn allocation_of_what_is_read_only_is_ebadf(place: &Place) {
    drop(filled(place, 10));
    let file = open(&place.path("a"), rustix::fs::OFlags::RDONLY, 0).unwrap();
    refused(fallocate(&file, FallocateFlags::empty(), 0, 10), Errno::BADF);
}

fn the_file_system_tells_its_space(place: &Place) {
    let before = rustix::fs::statvfs(place.folder()).unwrap();
    assert!(before.f_blocks > 0 && before.f_bfree <= before.f_blocks);
    assert!(before.f_bavail <= before.f_bfree && before.f_frsize > 0);
    assert_eq!(before.f_namemax, 255);
}

fn very_sparse_files(place: &Place) {
    let file = place.open_new("a");
    let offsets = [0_u64, 1 << 22, (1 << 30) + 1, (1 << 40) + 4095, (1 << 42) - 5];
    for offset in offsets {
        file.write_all_at(&offset.to_le_bytes(), offset).unwrap();
    }
    for offset in offsets {
        let mut read = [0; 8];
        file.read_exact_at(&mut read, offset).unwrap();
        assert_eq!(u64::from_le_bytes(read), offset);
    }
    let mut read = [1; 100];
    file.read_exact_at(&mut read, 1 << 41).unwrap();
    assert_eq!(read, [0; 100]);
    file.set_len(10).unwrap();
    assert_eq!(std::fs::read(place.path("a")).unwrap(), [0; 10]);
}
