//! Reading and writing: offsets, end of file, appending, direct access, mappings.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use rackpool_shm::mapping::Mapping;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::rules;
use crate::files::Rule;
use crate::files::place::{Place, open, refused, stat};

pub(super) const RULES: &[Rule] = rules![
    what_is_written_is_read_at_every_offset,
    reads_end_at_the_end,
    writes_past_the_end_leave_zeros,
    appends_go_to_the_end,
    appenders_do_not_overwrite_each_other,
    truncation_cuts_and_growth_is_zero,
    a_cut_tail_does_not_come_back,
    offsets_have_bounds,
    shared_mappings_are_written_through,
    mappings_see_writes,
    mappings_of_what_bypasses_the_cache,
    direct_access_reads_and_writes,
    direct_and_cached_access_agree,
    large_contents_are_kept,
    scattered_writes_are_gathered,
    copies_within_the_kernel,
    synchronised_writes,
    reading_a_folder_is_eisdir,
];

/// Bytes that identify their offset.
fn pattern(from: u64, len: usize) -> Vec<u8> {
    (from..).take(len).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13).to_le_bytes()[0]).collect()
}

fn what_is_written_is_read_at_every_offset(place: &Place) {
    let file = place.open_new("a");
    file.write_all_at(&pattern(0, 20_000), 0).unwrap();
    for (offset, len) in [(0, 1), (1, 4096), (4095, 2), (4096, 4096), (8191, 8194), (19_999, 1)] {
        let mut read = vec![0; len];
        file.read_exact_at(&mut read, offset).unwrap();
        assert_eq!(read, pattern(offset, len), "{len} B at {offset}");
    }
}

fn reads_end_at_the_end(place: &Place) {
    let file = place.open_new("a");
    file.write_all_at(b"12345", 0).unwrap();
    let mut read = [0; 10];
    assert_eq!(file.read_at(&mut read, 2).unwrap(), 3);
    assert_eq!(file.read_at(&mut read, 5).unwrap(), 0);
    assert_eq!(file.read_at(&mut read, 1 << 40).unwrap(), 0);
}

fn writes_past_the_end_leave_zeros(place: &Place) {
    let file = place.open_new("a");
    file.write_all_at(b"a", 0).unwrap();
    file.write_all_at(b"b", 100_000).unwrap();
    let contents = std::fs::read(place.path("a")).unwrap();
    assert_eq!((contents.len(), contents[0], contents[100_000]), (100_001, b'a', b'b'));
    assert!(contents[1..100_000].iter().all(|byte| *byte == 0));
}

fn appends_go_to_the_end(place: &Place) {
    let a = place.file("a", "one");
    let mut file = File::options().append(true).read(true).open(&a).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(b"two").unwrap();
    assert_eq!(file.stream_position().unwrap(), 6);
    file.set_len(2).unwrap();
    file.write_all(b"three").unwrap();
    assert_eq!(std::fs::read(a).unwrap(), b"onthree");
}

fn appenders_do_not_overwrite_each_other(place: &Place) {
    const EACH: u32 = 150;
    let a = place.file("a", "");
    std::thread::scope(|scope| {
        for writer in 0..4_u8 {
            let mut file = File::options().append(true).open(&a).unwrap();
            scope.spawn(move || {
                for number in 0..EACH {
                    file.write_all(format!("{writer} {number:06}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    let text = std::fs::read_to_string(&a).unwrap();
    for writer in 0..4 {
        let own = text.lines().filter_map(|line| line.strip_prefix(&format!("{writer} ")));
        let numbers: Vec<u32> = own.map(|number| number.parse().unwrap()).collect();
        assert_eq!(numbers, (0..EACH).collect::<Vec<_>>());
    }
}

fn truncation_cuts_and_growth_is_zero(place: &Place) {
    let file = place.open_new("a");
    file.write_all_at(&pattern(0, 10_000), 0).unwrap();
    for len in [9_999, 8192, 8191, 4097, 1, 0] {
        file.set_len(len).unwrap();
        let contents = std::fs::read(place.path("a")).unwrap();
        assert_eq!(contents, pattern(0, usize::try_from(len).unwrap()), "{len}");
    }
    file.set_len(12_345).unwrap();
    assert_eq!(std::fs::read(place.path("a")).unwrap(), vec![0; 12_345]);
    refused(rustix::fs::ftruncate(&file, u64::MAX), Errno::INVAL);
}

fn a_cut_tail_does_not_come_back(place: &Place) {
    let file = place.open_new("a");
    for (full, cut) in [(5000, 100), (8192, 4095), (12_000, 4096), (3 << 20, (2 << 20) + 7)] {
        file.set_len(0).unwrap();
        file.write_all_at(&vec![0xff; full], 0).unwrap();
        file.set_len(cut).unwrap();
        file.write_all_at(b"x", full as u64 + 10).unwrap();
        let contents = std::fs::read(place.path("a")).unwrap();
        let cut = usize::try_from(cut).unwrap();
        assert!(contents[..cut].iter().all(|byte| *byte == 0xff), "{full} {cut}");
        assert!(contents[cut..full + 10].iter().all(|byte| *byte == 0), "{full} {cut}");
    }
}

fn offsets_have_bounds(place: &Place) {
    let file = place.open_new("a");
    let largest = u64::try_from(i64::MAX).unwrap();
    assert!(file.write_at(b"xy", largest).is_err());
    assert!(file.write_at(b"xy", u64::MAX - 1).is_err());
    let mut read = [0; 2];
    assert_eq!(rustix::io::pread(&file, &mut read, largest - 2).unwrap(), 0);
    assert_eq!(file.metadata().unwrap().len(), 0);
}

fn shared_mappings_are_written_through(place: &Place) {
    let file = place.open_new("a");
    file.set_len(3 * 4096).unwrap();
    let mapping = Mapping::new(&file, 3 * 4096).unwrap();
    mapping.write(4000, &pattern(4000, 200)).unwrap();
    rustix::fs::fsync(&file).unwrap();
    let mut read = vec![0; 200];
    File::open(place.path("a")).unwrap().read_exact_at(&mut read, 4000).unwrap();
    assert_eq!(read, pattern(4000, 200));
    mapping.write(8192, b"later").unwrap();
    drop(mapping);
    drop(file);
    assert_eq!(std::fs::read(place.path("a")).unwrap()[8192..8197], *b"later");
}

fn mappings_see_writes(place: &Place) {
    let file = place.open_new("a");
    file.write_all_at(&[1; 8192], 0).unwrap();
    let mapping = Mapping::new(&file, 8192).unwrap();
    let mut read = [0; 3];
    mapping.read(4095, &mut read).unwrap();
    assert_eq!(read, [1; 3]);
    file.write_all_at(&[2; 3], 4095).unwrap();
    mapping.read(4095, &mut read).unwrap();
    assert_eq!(read, [2; 3]);
}

fn mappings_of_what_bypasses_the_cache(place: &Place) {
    let a = place.file("a", vec![1; 8192]);
    let file = File::options().read(true).append(true).open(&a).unwrap();
    let mapping = Mapping::new(&file, 8192).unwrap();
    mapping.write(100, b"mapped").unwrap();
    rustix::fs::fsync(&file).unwrap();
    drop(mapping);
    drop(file);
    assert_eq!(std::fs::read(&a).unwrap()[100..106], *b"mapped");
}

/// A buffer with the alignment that direct access may require.
#[repr(align(4096))]
struct Aligned([u8; 8192]);

fn direct_access_reads_and_writes(place: &Place) {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT;
    let file = match open(&place.path("a"), flags, 0o644) {
        Ok(file) => File::from(file),
        // A file system may refuse.
        Err(error) => return assert_eq!(error, Errno::INVAL),
    };
    let written = Aligned(pattern(0, 8192).try_into().unwrap());
    file.write_all_at(&written.0, 4096).unwrap();
    let mut read = Aligned([1; 8192]);
    assert_eq!(file.read_at(&mut read.0, 4096).unwrap(), 8192);
    assert_eq!(read.0, written.0);
    assert_eq!(file.read_at(&mut read.0, 8192).unwrap(), 4096);
    assert_eq!(file.read_at(&mut read.0, 12_288).unwrap(), 0);
    assert_eq!(file.read_at(&mut read.0, 0).unwrap(), 8192);
    assert!(read.0[..4096].iter().all(|byte| *byte == 0));
}

fn direct_and_cached_access_agree(place: &Place) {
    let cached = place.open_new("a");
    cached.write_all_at(&[1; 16_384], 0).unwrap();
    let Ok(direct) = open(&place.path("a"), OFlags::RDWR | OFlags::DIRECT, 0) else { return };
    let direct = File::from(direct);
    let mut read = Aligned([0; 8192]);
    assert_eq!(direct.read_at(&mut read.0, 8192).unwrap(), 8192);
    assert_eq!(read.0, [1; 8192]);
    direct.write_all_at(&Aligned([2; 8192]).0, 4096).unwrap();
    let mut seen = vec![0; 16_384];
    cached.read_exact_at(&mut seen, 0).unwrap();
    assert!(seen[4096..12_288].iter().all(|byte| *byte == 2));
    cached.write_all_at(&[3; 4096], 4096).unwrap();
    assert_eq!(direct.read_at(&mut read.0, 4096).unwrap(), 8192);
    assert_eq!((read.0[0], read.0[4096]), (3, 2));
}

fn large_contents_are_kept(place: &Place) {
    const LEN: usize = 5 << 20;
    let contents = pattern(0, LEN);
    let a = place.file("a", &contents);
    assert_eq!(std::fs::read(&a).unwrap(), contents);
    assert!(u64::try_from(stat(&a).st_blocks).unwrap() * 512 >= LEN as u64);
}

fn scattered_writes_are_gathered(place: &Place) {
    let mut file = place.open_new("a");
    let parts = [pattern(0, 5000), pattern(5000, 1), pattern(5001, 9000)];
    let slices: Vec<std::io::IoSlice<'_>> =
        parts.iter().map(|part| std::io::IoSlice::new(part)).collect();
    assert_eq!(file.write_vectored(&slices).unwrap(), 14_001);
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut read = Vec::new();
    file.read_to_end(&mut read).unwrap();
    assert_eq!(read, pattern(0, 14_001));
}

fn copies_within_the_kernel(place: &Place) {
    let from = place.open_new("from");
    let to = place.open_new("to");
    from.write_all_at(&pattern(0, 300_000), 0).unwrap();
    let (mut in_offset, mut out_offset) = (1000, 77);
    while in_offset < 300_000 {
        let rest = usize::try_from(300_000 - in_offset).unwrap();
        let copied = rustix::fs::copy_file_range(
            &from,
            Some(&mut in_offset),
            &to,
            Some(&mut out_offset),
            rest,
        );
        assert!(copied.unwrap() > 0);
    }
    let contents = std::fs::read(place.path("to")).unwrap();
    assert_eq!(contents[..77], [0; 77]);
    assert_eq!(contents[77..], pattern(1000, 299_000));
}

fn synchronised_writes(place: &Place) {
    for flags in [OFlags::SYNC, OFlags::DSYNC] {
        let path = place.path("a");
        let flags = flags | OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
        let file = File::from(open(&path, flags, 0o644).unwrap());
        file.write_all_at(b"safe", 0).unwrap();
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        assert_eq!(std::fs::read(path).unwrap(), b"safe");
    }
    File::open(place.folder()).unwrap().sync_all().unwrap();
}

fn reading_a_folder_is_eisdir(place: &Place) {
    let folder = open(place.folder(), OFlags::RDONLY, 0).unwrap();
    let mut read = [0; 10];
    refused(rustix::io::read(&folder, &mut read), Errno::ISDIR);
}
