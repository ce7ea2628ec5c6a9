//! Files' contents compared with plain vectors, by two mounts in turn.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking, and its numbers are small"
)]

mod support;

use proptest::collection::vec;
use proptest::prelude::*;
use rackpool_fs::{AllocateMode, Appended, FsError, Ino, NewNode, SetAttr, Volume};
use support::{ROOT, TestVolumeMemory, file};

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u32),
    Append(u32),
    Size(u64),
    Punch(u64, u64),
    Zero(u64, u64),
    Fill(u64, u64, bool),
    Read(u64, u32),
    Reopen(bool),
    Seek(u64),
}

/// Offsets around block and cluster boundaries.
fn offset() -> impl Strategy<Value = u64> {
    let edges = [0_u64, 4096, 65536, 65536 * 2, 65536 * 3, 65536 * 5];
    (0..edges.len(), -9..9_i64)
        .prop_map(move |(edge, off)| edges[edge].saturating_add_signed(off * 511))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (offset(), 1..140_000u32).prop_map(|(at, len)| Step::Write(at, len)),
        3 => (offset(), 1..9000u32).prop_map(|(at, len)| Step::Write(at, len)),
        2 => (1..70_000u32).prop_map(Step::Append),
        3 => offset().prop_map(Step::Size),
        2 => (offset(), 1..200_000u64).prop_map(|(at, len)| Step::Punch(at, len)),
        1 => (offset(), 1..200_000u64).prop_map(|(at, len)| Step::Zero(at, len)),
        1 => (offset(), 1..200_000u64, any::<bool>()).prop_map(|(a, l, k)| Step::Fill(a, l, k)),
        4 => (offset(), 1..300_000u32).prop_map(|(at, len)| Step::Read(at, len)),
        2 => any::<bool>().prop_map(Step::Reopen),
        1 => offset().prop_map(Step::Seek),
    ]
}

fn whole(volume: &Volume<TestVolumeMemory>, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0xee; volume.attr(ino).unwrap().size as usize];
    assert_eq!(volume.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]

    #[test]
    fn behaves_like_a_vector(steps in vec(step(), 1..40), both in any::<bool>()) {
        let memory = TestVolumeMemory::new(64 << 20);
        let volumes = [memory.mount(), memory.mount()];
        let ino = file(&volumes[0], Ino::ROOT, b"file");
        let before = memory.used();
        volumes[0].open(ino).unwrap();
        let mut open = [true, false];
        let mut model: Vec<u8> = Vec::new();
        for (at, step) in steps.into_iter().enumerate() {
            let volume = &volumes[if both { at % 2 } else { 0 }];
            let bytes = |len: u32| -> Vec<u8> { (0..len).map(|i| (i as usize * 7 + at * 31 + 1) as u8 | 1).collect() };
            let put = |model: &mut Vec<u8>, offset: usize, bytes: &[u8]| {
                model.resize(model.len().max(offset + bytes.len()), 0);
                model[offset..offset + bytes.len()].copy_from_slice(bytes);
            };
            match step {
                Step::Write(offset, len) => {
                    let bytes = bytes(len);
                    prop_assert_eq!(volume.write(ino, offset, &bytes).unwrap(), bytes.len());
                    put(&mut model, offset as usize, &bytes);
                }
                Step::Append(len) => {
                    let bytes = bytes(len);
                    let offset = model.len();
                    let appended = Appended { offset: offset as u64, bytes: bytes.len() };
                    prop_assert_eq!(volume.append(ino, &bytes).unwrap(), appended);
                    put(&mut model, offset, &bytes);
                }
                Step::Size(new) => {
                    volume.set_attr(ino, &size(new), ROOT).unwrap();
                    model.resize(new as usize, 0);
                }
                Step::Punch(offset, len) => {
                    volume.allocate(ino, AllocateMode::PunchHole, offset, len).unwrap();
                    let end = model.len().min((offset + len) as usize);
                    if (offset as usize) < end {
                        model[offset as usize..end].fill(0);
                    }
                }
                Step::Zero(offset, len) => {
                    volume.allocate(ino, AllocateMode::ZeroRange, offset, len).unwrap();
                    put(&mut model, offset as usize, &vec![0; len as usize]);
                }
                Step::Fill(offset, len, keep) => {
                    let mode = if keep { AllocateMode::AllocateKeepSize } else { AllocateMode::Allocate };
                    volume.allocate(ino, mode, offset, len).unwrap();
                    if !keep {
                        model.resize(model.len().max((offset + len) as usize), 0);
                    }
                }
                Step::Read(offset, len) => {
                    let mut bytes = vec![0xee; len as usize];
                    let read = volume.read(ino, offset, &mut bytes).unwrap();
                    let from = model.len().min(offset as usize);
                    let to = model.len().min(offset as usize + len as usize);
                    prop_assert_eq!(&bytes[..read], &model[from..to]);
                }
                Step::Reopen(second) => {
                    let which = usize::from(second);
                    open[which] = !open[which];
                    if !open[which] {
                        volumes[which].release(ino).unwrap();
                    } else {
                        volumes[which].open(ino).unwrap();
                    }
                }
                Step::Seek(offset) => match volume.seek_data(ino, offset) {
                    Ok(data) => {
                        prop_assert!(model[offset as usize..data as usize].iter().all(|byte| *byte == 0));
                        let hole = volume.seek_hole(ino, data).unwrap();
                        prop_assert!(hole > data && hole <= model.len() as u64);
                    }
                    Err(FsError::NoSuchOffset) => {
                        let rest = &model[model.len().min(offset as usize)..];
                        prop_assert!(rest.iter().all(|byte| *byte == 0));
                    }
                    Err(error) => panic!("{error}"),
                },
            }
            prop_assert_eq!(volume.attr(ino).unwrap().size, model.len() as u64);
        }
        for volume in &volumes {
            prop_assert!(whole(volume, ino) == model);
        }
        for (volume, open) in volumes.iter().zip(open) {
            if open {
                volume.release(ino).unwrap();
            }
        }
        volumes[1].unlink(Ino::ROOT, b"file").unwrap();
        volumes[0].sweep().unwrap();
        // A page of heads stays allocated.
        prop_assert!(memory.used() <= before + 4096, "{} after {}", memory.used(), before);
    }
}

#[test]
fn what_has_no_name_stays_while_it_is_open_anywhere() {
    let memory = TestVolumeMemory::new(64 << 20);
    let (a, b) = (memory.mount(), memory.mount());
    file(&a, Ino::ROOT, b"page of heads");
    let ino = file(&a, Ino::ROOT, b"file");
    a.write(ino, 0, &[7; 100_000]).unwrap();
    let full = memory.used();
    a.open(ino).unwrap();
    b.unlink(Ino::ROOT, b"file").unwrap();
    b.sweep().unwrap();
    assert_eq!(whole(&a, ino), [7; 100_000]);
    assert_eq!(a.attr(ino).unwrap().nlink, 0);
    a.write(ino, 100_000, &[8; 10]).unwrap();
    a.release(ino).unwrap();
    assert!(matches!(a.attr(ino), Err(FsError::NotFound)));
    assert!(memory.used() + 100_000 < full);
}

#[test]
fn a_file_that_was_created_open_stays_as_long_as_it_is() {
    let memory = TestVolumeMemory::new(64 << 20);
    let (a, b) = (memory.mount(), memory.mount());
    let ino = a.create_open(Ino::ROOT, b"file", 0o644, ROOT).unwrap().ino;
    assert!(matches!(b.create_open(Ino::ROOT, b"file", 0o644, ROOT), Err(FsError::Exists)));
    b.unlink(Ino::ROOT, b"file").unwrap();
    b.sweep().unwrap();
    a.write(ino, 0, &[7; 100_000]).unwrap();
    // As another program of this mount would do.
    a.open(ino).unwrap();
    a.release(ino).unwrap();
    assert_eq!(whole(&a, ino), [7; 100_000]);
    a.release(ino).unwrap();
    assert!(matches!(a.attr(ino), Err(FsError::NotFound)));
}

#[test]
fn a_file_can_have_bytes_anywhere() {
    let memory = TestVolumeMemory::new(64 << 20);
    let volume = memory.mount();
    let ino = file(&volume, Ino::ROOT, b"file");
    let before = memory.used();
    let offsets: Vec<u64> = (0..63).map(|bit| (1_u64 << bit) - 1).collect();
    volume.open(ino).unwrap();
    for offset in &offsets {
        volume.write(ino, *offset, &[*offset as u8 | 1]).unwrap();
    }
    for offset in &offsets {
        let mut byte = [0];
        volume.read(ino, *offset, &mut byte).unwrap();
        assert_eq!(byte, [*offset as u8 | 1], "{offset}");
    }
    assert!(matches!(volume.write(ino, i64::MAX as u64, b"x"), Err(FsError::TooLarge)));
    let end = (1_u64 << 62) - 1;
    assert_eq!(volume.seek_data(ino, (1 << 61) + 1_000_000).unwrap(), end & !4095);
    volume.set_attr(ino, &size(1), ROOT).unwrap();
    volume.set_attr(ino, &size(1 << 62), ROOT).unwrap();
    assert!(matches!(volume.seek_data(ino, 65536), Err(FsError::NoSuchOffset)));
    volume.release(ino).unwrap();
    volume.unlink(Ino::ROOT, b"file").unwrap();
    assert!(memory.used() <= before + 4096);
}

/// Returns the memory allocated for a file's contents, in bytes.
fn allocated(volume: &Volume<TestVolumeMemory>, ino: Ino) -> u64 {
    volume.attr(ino).unwrap().blocks * 512
}

#[test]
fn pieces_far_apart_take_no_more_than_their_blocks() {
    const BLOCK: u64 = 4096;
    const CLUSTER: u64 = 64 << 10;
    const PIECES: u64 = 32;
    let memory = TestVolumeMemory::new(64 << 20);
    let volume = memory.mount();
    let ino = file(&volume, Ino::ROOT, b"sparse");
    volume.open(ino).unwrap();
    // Also in a file that is long enough already, and backwards.
    for (round, order) in [false, true, false].into_iter().enumerate() {
        volume.set_attr(ino, &size(0), ROOT).unwrap();
        if round == 2 {
            volume.set_attr(ino, &size(PIECES * CLUSTER), ROOT).unwrap();
        }
        for piece in 0..PIECES {
            let piece = if order { PIECES - 1 - piece } else { piece };
            volume.write(ino, piece * CLUSTER, &[7; BLOCK as usize]).unwrap();
        }
        assert_eq!(allocated(&volume, ino), PIECES * BLOCK, "round {round}");
        for piece in 0..PIECES - 1 {
            let hole = volume.seek_hole(ino, piece * CLUSTER).unwrap();
            assert_eq!(hole, piece * CLUSTER + BLOCK, "round {round}");
            assert_eq!(volume.seek_data(ino, hole).unwrap(), (piece + 1) * CLUSTER);
        }
    }
}

#[test]
fn a_file_written_in_order_gets_runs_by_whatever_pieces() {
    const CLUSTER: u64 = 64 << 10;
    let memory = TestVolumeMemory::new(64 << 20);
    let volume = memory.mount();
    // Unlike the blocks of the first cluster, a run is allocated completely by its first piece.
    for (piece, appends) in [(4096_usize, false), (4096, true), (70_000, false), (1000, true)] {
        let name = format!("{piece} {appends}");
        let ino = file(&volume, Ino::ROOT, name.as_bytes());
        volume.open(ino).unwrap();
        let bytes = vec![9; piece];
        let mut end = 0;
        while end < 8 * CLUSTER {
            let written = if appends {
                volume.append(ino, &bytes).unwrap().bytes
            } else {
                volume.write(ino, end, &bytes).unwrap()
            };
            assert_eq!(written, piece);
            end += piece as u64;
            // A piece that begins within a cluster may leave blocks there.
            if CLUSTER.is_multiple_of(piece as u64) && end > CLUSTER {
                assert_eq!(allocated(&volume, ino), end.next_multiple_of(CLUSTER), "{name}");
            }
        }
        if piece == 70_000 {
            assert_eq!(allocated(&volume, ino), end.next_multiple_of(CLUSTER), "{name}");
        }
        assert!(whole(&volume, ino).iter().all(|byte| *byte == 9), "{name}");
        volume.release(ino).unwrap();
    }
}

#[test]
fn a_full_pool_is_said_so_keeps_what_there_is_and_has_room_again_after_removals() {
    let memory = TestVolumeMemory::new(16 << 20);
    let volume = memory.mount();
    let kept = file(&volume, Ino::ROOT, b"kept");
    volume.write(kept, 0, b"kept").unwrap();
    for round in 0..3 {
        let ino = file(&volume, Ino::ROOT, b"large");
        volume.open(ino).unwrap();
        let mut written = 0;
        loop {
            match volume.write(ino, written, &[9; 1 << 20]) {
                Ok(bytes) => written += bytes as u64,
                Err(FsError::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
            assert_eq!(volume.attr(ino).unwrap().size, written);
        }
        assert!(written > 4 << 20, "round {round}: {written}");
        // Until nothing fits any more.
        let mut small = 0_u32;
        while let Ok(attr) = volume.create(
            Ino::ROOT,
            format!("{small}").as_bytes(),
            NewNode::Symlink(&[b'x'; 2000]),
            0,
            ROOT,
        ) {
            assert_eq!(volume.readlink(attr.ino).unwrap().len(), 2000);
            small += 1;
        }
        assert!(matches!(volume.write(ino, 1 << 30, b"x"), Err(FsError::NoSpace)));
        assert_eq!(volume.attr(ino).unwrap().size, written);
        assert_eq!(whole(&volume, kept), b"kept");
        assert!(whole(&volume, ino).iter().all(|byte| *byte == 9));
        assert_eq!(volume.write(kept, 0, b"KEPT").unwrap(), 4);
        assert_eq!(volume.write(kept, 0, b"kept").unwrap(), 4);
        volume.set_attr(kept, &SetAttr { mode: Some(0o600), ..SetAttr::default() }, ROOT).unwrap();
        volume.release(ino).unwrap();
        volume.unlink(Ino::ROOT, b"large").unwrap();
        for number in 0..small {
            volume.unlink(Ino::ROOT, format!("{number}").as_bytes()).unwrap();
        }
        volume.sweep().unwrap();
    }
}
