//! Superblocks.

use std::path::Path;

use rackpool_model::{Incarnation, PageId};
use rackpool_ring::client_file::{ClientFile, MAX_THREADS};
use rackpool_shm::Mapping;
use rackpool_shm::metadata::{MetadataLayout, RackMetadata};
use rackpool_shm::superblock::{FileKind, Geometry, SUPERBLOCK_BYTES, Superblock};
use xxhash_rust::xxh3::xxh3_64;

use crate::Input;
use crate::memory::zeroes;

/// Bytes at the start of a superblock that carry meaning.
const BYTES: usize = 128;
/// Offset of the checksum.
const CHECKSUM: usize = 56;

/// A superblock is refused, or it yields the same geometry when it is read in place, when it is
/// parsed from a copy, and when it is formatted again. Laying out that geometry does not exceed 64
/// bits, and a file that is too short for it is refused. The words that change after formatting are
/// refused, or they equal what noting their values would store.
pub fn geometry(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let is_sealed = input.byte() & 1 == 1;
    let mut block = input.bytes(BYTES).to_vec();
    block.resize(BYTES, 0);
    if is_sealed {
        // A valid checksum, so that the fields behind it are reached.
        let check = xxh3_64(&[&block[..CHECKSUM], &block[80..96], &block[104..112]].concat());
        block[CHECKSUM..CHECKSUM + 8].copy_from_slice(&check.to_le_bytes());
    }
    let path = Path::new("the file under test");
    let parsed = Superblock::parse(&block, path);
    for end in [0, 8, 55, 63] {
        assert!(Superblock::parse(&block[..end], path).is_err(), "{end} B are no superblock");
    }
    let mapping = zeroes(SUPERBLOCK_BYTES);
    mapping.write(0, &block).unwrap();
    let found = mapping.view::<Superblock>(0).unwrap();
    assert_eq!(found.read(path), parsed);
    let (first_page, life) = (found.first_page(path), found.incarnation(path));
    // These fields may have any value.
    let _ = (found.owner(), found.is_closed());
    if let Ok(geometry) = parsed {
        mapping.write(0, &[0; CHECKSUM + 24]).unwrap();
        found.format(&geometry);
        assert_eq!(found.first_page(path), Ok(None));
        assert_eq!(found.incarnation(path), Ok(Incarnation(0)));
        let same = |range: std::ops::Range<usize>, what: &dyn std::fmt::Debug| {
            let mut again = vec![0; range.len()];
            mapping.read(range.start as u64, &mut again).unwrap();
            assert_eq!(again, &block[range], "{what:?} is noted in two ways");
        };
        same(0..64, &geometry);
        if let Ok(first) = first_page {
            found.set_first_page(first.unwrap_or(PageId(0)));
            same(64..72, &first);
        }
        if let Ok(life) = life {
            found.set_incarnation(life);
            same(72..80, &life);
            assert_eq!(found.incarnation(path), Ok(life));
        }
        lay_out(&geometry, mapping);
    }
}

fn lay_out(geometry: &Geometry, mapping: Mapping) {
    match geometry.kind {
        FileKind::Metadata => {
            let layout = MetadataLayout::new(geometry.page_size, geometry.frames);
            assert!(layout.bytes() > SUPERBLOCK_BYTES && layout.bytes() < 1 << 62);
            assert!(RackMetadata::new(mapping, layout).is_err(), "it is longer than its file");
        }
        FileKind::Client => {
            let Ok(threads) = u16::try_from(geometry.threads) else { return };
            assert!(ClientFile::bytes(threads.min(MAX_THREADS)) < 1 << 32);
            assert!(ClientFile::new(mapping, threads).is_err(), "it is longer than its file");
        }
    }
}
