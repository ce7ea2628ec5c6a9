use super::*;
use crate::file;

fn geometry() -> Geometry {
    Geometry {
        kind: FileKind::Client,
        rack: RackId(7),
        memory: MemoryId(u128::MAX - 5),
        page_size: PageSize::DEFAULT,
        frames: 512,
        client: ClientId(9),
        threads: 64,
    }
}

fn with_block(test: impl FnOnce(&Mapping, &Superblock)) {
    let folder = tempfile::tempdir().unwrap();
    let file = file::create(&folder.path().join("file"), SUPERBLOCK_BYTES).unwrap();
    let memory = Mapping::new(&file, SUPERBLOCK_BYTES).unwrap();
    test(&memory, memory.view(0).unwrap());
}

#[test]
fn what_is_formatted_is_read() {
    with_block(|memory, block| {
        block.format(&geometry());
        assert_eq!(block.read(Path::new("x")), Ok(geometry()));
        let mut bytes = vec![0; 4096];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(Superblock::parse(&bytes, Path::new("x")), Ok(geometry()));
        assert!(Superblock::parse(&bytes[..30], Path::new("x")).is_err());
        let first = || block.first_page(Path::new("x")).unwrap();
        assert_eq!(first(), None);
        block.set_first_page(PageId(3));
        assert_eq!(first(), Some(PageId(3)));
        assert_eq!(block.read(Path::new("x")), Ok(geometry()));
    });
}

#[test]
fn what_changes_lies_where_clients_look_for_it() {
    with_block(|memory, block| {
        block.set_memory_kind(0x104);
        block.format(&geometry());
        block.set_extra_latency_ns(50);
        assert_eq!(block.memory_kind(), 0x104);
        let at = |offset| memory.view::<AtomicU64>(offset).unwrap().load(Ordering::Relaxed);
        assert_eq!((at(104), at(112)), (0x104, 50));
        assert_eq!(Superblock::EXTRA_LATENCY_OFFSET, 112);
        assert_eq!(Superblock::HEAVY_BARRIER_OFFSET, 192, "nothing else has moved");
        assert_eq!(block.read(Path::new("x")), Ok(geometry()));
    });
}

const fn seen_at(boot: u32, commit: u64) -> StorePosition {
    StorePosition { store: 7, boot, server: 40, commit }
}

#[test]
fn the_last_commit_that_was_seen_is_read() {
    with_block(|_, block| {
        let seen = || block.seen(Path::new("x")).unwrap();
        assert_eq!(seen(), None);
        for (boot, commit) in [(1, 1), (1, 2), (1, 9), (2, 1), (2, u64::MAX), (3, 1)] {
            block.set_seen(seen_at(boot, commit));
            assert_eq!(seen(), Some(seen_at(boot, commit)));
            // An older commit changes nothing.
            block.set_seen(seen_at(1, 1));
            assert_eq!(seen(), Some(seen_at(boot, commit)));
        }
        block.format(&geometry());
        assert_eq!(seen(), Some(seen_at(3, 1)));
    });
}

#[test]
fn a_crash_while_a_commit_is_noted_leaves_the_one_before() {
    // The number of words stored before the crash (0 to 4), and of positions noted before.
    for (stored, before) in (0..5).flat_map(|stored| (0..4).map(move |before| (stored, before))) {
        with_block(|_, block| {
            (1..=before).for_each(|commit| block.set_seen(seen_at(1, commit)));
            let words = |block: &Superblock| {
                block
                    .seen
                    .each_ref()
                    .map(|slot| slot.words.each_ref().map(|w| w.load(Ordering::Relaxed)))
            };
            let old = words(block);
            block.set_seen(seen_at(2, 1));
            let new = words(block);
            let slot = usize::from(old[0] == new[0]);
            let cells = block.seen[slot].words.iter().zip(old[slot]);
            cells.skip(stored).for_each(|(cell, word)| cell.store(word, Ordering::Relaxed));
            let found = block.seen(Path::new("x")).unwrap();
            assert_eq!(found, (before > 0).then(|| seen_at(1, before)), "{stored} words stored");
            block.set_seen(seen_at(2, 1));
            assert_eq!(block.seen(Path::new("x")), Ok(Some(seen_at(2, 1))));
        });
    }
}

#[test]
fn two_damaged_notes_are_found() {
    with_block(|memory, block| {
        block.set_seen(seen_at(1, 1));
        block.set_seen(seen_at(1, 2));
        for offset in [256, 320] {
            flip(memory, offset * 8);
        }
        assert_eq!(block.seen(Path::new("x")), Err(SuperblockError::Corrupt("x".into())));
    });
}

/// The fields that a daemon reads before it takes a file over.
fn read_all(block: &Superblock) -> Result<(Option<PageId>, Incarnation), SuperblockError> {
    let path = Path::new("x");
    block.read(path)?;
    Ok((block.first_page(path)?, block.incarnation(path)?))
}

fn flip(memory: &Mapping, bit: u64) {
    let mut byte = [0];
    memory.read(bit / 8, &mut byte).unwrap();
    memory.write(bit / 8, &[byte[0] ^ (1 << (bit % 8))]).unwrap();
}

#[test]
fn every_flipped_bit_is_found() {
    with_block(|memory, block| {
        block.set_owner(OwnerProcess { pid: 4711, started: 815 });
        block.set_memory_kind(0x104);
        block.format(&geometry());
        let pages = [None, Some(1), Some(2), Some(512), Some(1 << 31), Some(u32::MAX)];
        let lives = [0, 1, 1 << 63, 1_800_000_000_000_000_000, u64::MAX];
        for (first, life) in pages.into_iter().flat_map(|p| lives.map(|l| (p.map(PageId), l))) {
            if let Some(first) = first {
                block.set_first_page(first);
            }
            block.set_incarnation(Incarnation(life));
            let noted = (first, Incarnation(life));
            assert_eq!(read_all(block), Ok(noted));
            for bit in 0..128 * 8 {
                flip(memory, bit);
                match bit / 8 {
                    // The closed flag: one flipped bit does not set it.
                    96..104 => assert!(!block.is_closed(), "bit {bit}"),
                    // Each daemon writes this field when it starts.
                    112..120 => assert_eq!(read_all(block), Ok(noted), "bit {bit}"),
                    // One of the two checks still fits.
                    120..128 => assert_eq!(read_all(block), Ok(noted), "bit {bit}"),
                    _ => assert!(read_all(block).is_err(), "bit {bit} of {noted:?}"),
                }
                flip(memory, bit);
            }
        }
    });
}

#[test]
fn words_that_lost_their_contents_are_found() {
    with_block(|_, block| {
        block.format(&geometry());
        block.set_first_page(PageId(3));
        block.set_incarnation(Incarnation(9));
        block.first_page.store(0, Ordering::Relaxed);
        assert!(matches!(block.first_page(Path::new("x")), Err(SuperblockError::Corrupt(_))));
        block.set_first_page(PageId(3));
        block.incarnation.store(0, Ordering::Relaxed);
        assert!(matches!(block.incarnation(Path::new("x")), Err(SuperblockError::Corrupt(_))));
    });
}

/// A daemon that is killed while it notes its incarnation leaves the old one or the new one.
#[test]
fn an_unfinished_change_of_the_life_is_no_damage() {
    with_block(|_, block| {
        block.format(&geometry());
        for (old, new) in [(0, 1), (1, u64::MAX), (u64::MAX, 0)] {
            block.set_incarnation(Incarnation(old));
            let stores = [
                (&block.life_checks, life_checks(Incarnation(old), Incarnation(new)), old),
                (&block.incarnation, new, new),
                (&block.life_checks, life_checks(Incarnation(new), Incarnation(new)), new),
            ];
            for (cell, word, found) in stores {
                cell.store(word, Ordering::Relaxed);
                assert_eq!(read_all(block), Ok((None, Incarnation(found))));
            }
        }
    });
}

#[test]
fn an_unfinished_format_is_refused_and_can_be_begun_anew() {
    with_block(|memory, block| {
        let is_unformatted = || Superblock::is_unformatted(memory).unwrap();
        assert!(matches!(block.read(Path::new("x")), Err(SuperblockError::Foreign(_))));
        assert!(is_unformatted());
        block.set_owner(OwnerProcess { pid: 4711, started: 815 });
        block.set_memory_kind(0x104);
        assert!(is_unformatted());
        block.format(&geometry());
        assert!(!is_unformatted());
        block.checksum.store(0, Ordering::Relaxed);
        assert!(matches!(block.read(Path::new("x")), Err(SuperblockError::Corrupt(_))));
        assert!(!is_unformatted());
        // The magic is the last store.
        block.geometry[0].store(0, Ordering::Relaxed);
        assert!(matches!(block.read(Path::new("x")), Err(SuperblockError::Foreign(_))));
        assert!(is_unformatted());
        for byte in [128, 192, 4095] {
            memory.write(byte, &[1]).unwrap();
            assert!(!is_unformatted(), "byte {byte} is somebody else's");
            memory.write(byte, &[0]).unwrap();
        }
    });
}

/// The offsets of docs/design/rack-memory.md.
#[test]
fn the_layout_is_the_documented_one() {
    use std::mem::offset_of;
    assert_eq!(size_of::<Superblock>(), 384);
    assert_eq!(offset_of!(Superblock, seen), 256);
    assert_eq!(size_of::<SeenSlot>(), 64);
    assert_eq!(offset_of!(Superblock, checksum), 56);
    assert_eq!(offset_of!(Superblock, first_page), 64);
    assert_eq!(offset_of!(Superblock, incarnation), 72);
    assert_eq!(offset_of!(Superblock, owner), 80);
    assert_eq!(offset_of!(Superblock, closed), 96);
    assert_eq!(offset_of!(Superblock, memory_kind), 104);
    assert_eq!(offset_of!(Superblock, extra_latency_ns), 112);
    assert_eq!(offset_of!(Superblock, life_checks), 120);
    assert_eq!(offset_of!(Superblock, sleeping), 128);
    assert_eq!(offset_of!(Superblock, heavy_barrier), 192);
    with_block(|memory, block| {
        block.set_owner(OwnerProcess { pid: 4711, started: 815 });
        block.set_memory_kind(0x104);
        block.format(&geometry());
        block.set_first_page(PageId(3));
        block.set_incarnation(Incarnation(17));
        block.set_closed();
        let mut bytes = [0; 128];
        memory.read(0, &mut bytes).unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(&bytes[..8], b"rackpool");
        assert_eq!((word(8), word(12)), (2, FORMAT_VERSION));
        assert_eq!((word(16), word(20)), (21, 512));
        assert_eq!((word(24), word(28)), (7, 64));
        assert_eq!((long(32), long(40)), (u64::MAX - 5, u64::MAX));
        let covered = [&bytes[..56], &bytes[80..96], &bytes[104..112]].concat();
        assert_eq!((long(48), long(56)), (9, xxh3_64(&covered)));
        let check = |at: u64, value: u64| {
            let words = [at.to_le_bytes(), value.to_le_bytes()].concat();
            u32::try_from(xxh3_64(&words) >> 32).unwrap()
        };
        assert_eq!((word(64), word(68)), (3, check(64, 3)));
        assert_eq!((long(72), word(120), word(124)), (17, check(72, 17), check(72, 17)));
        assert_eq!((long(80), long(88)), (4711, 815));
        assert_eq!((&bytes[96..104], long(104)), (&b"closed\0\0"[..], 0x104));
    });
}
