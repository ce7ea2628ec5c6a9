//! The NUMA node of memory whose kind has none of its own, and where its pages really are.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rackpool_model::ByteSize;
use rustix::fs::{SeekFrom, fstatfs, seek};

use super::error::system;
use super::{MemoryError, MemoryPlace, RackMemory};
use crate::Mapping;
use crate::numa::NumaPolicy;

/// Most pages whose node is checked.
const SAMPLE: u64 = 64;
const PAGE: u64 = 4096;

/// The NUMA node for the pages of memory whose kind has none of its own: all but `numa:N` and
/// `dax`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FramesNode {
    /// The kernel chooses: the node of the processor that first touches a page.
    #[default]
    Anywhere,
    /// This node. Memory that already has pages stays on theirs, and nothing fails for its node.
    Suggested(u32),
    /// This node. New memory that can't be had there is refused.
    Asked(u32),
}

/// The node for the pages that memory will get.
pub(super) struct Preferred {
    pub(super) node: u32,
    /// True if the memory had pages before. They stay where they are.
    had_pages: bool,
}

impl MemoryPlace<'_> {
    /// The node for the pages of this memory, of which these exist; `None` leaves it to the kernel.
    pub(super) fn preferred(&self, pages: &[(u64, u32)]) -> Option<Preferred> {
        let node = match (self.node, pages.first()) {
            (FramesNode::Anywhere, _) => return None,
            (FramesNode::Suggested(_), Some((_, node))) => *node,
            (FramesNode::Suggested(node) | FramesNode::Asked(node), _) => node,
        };
        Some(Preferred { node, had_pages: !pages.is_empty() })
    }

    /// Makes the kernel take missing pages from the node while that has free memory. Must run
    /// before the first page is touched.
    pub(super) fn prefer(
        &self,
        mapping: &Mapping,
        file: &File,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Preferred>, MemoryError> {
        let Some(preferred) = self.preferred(&survey(mapping, file)?) else { return Ok(None) };
        let node = preferred.node;
        match mapping.bind_to_node(node, NumaPolicy::Prefer) {
            Ok(()) => {}
            Err(error) if self.node == FramesNode::Asked(node) => {
                return Err(system("bind to its NUMA node", self.directory.frames().display())(
                    error,
                ));
            }
            Err(error) => {
                warnings.push(format!("the frames can't be placed on NUMA node {node}: {error}"));
                return Ok(None);
            }
        }
        let nodes = self.machine.nodes();
        let free = nodes.iter().find(|found| found.id == node).map_or(0, |found| found.free_bytes);
        if !preferred.had_pages && free < self.bytes {
            warnings.push(format!(
                "NUMA node {node} has {} free, the frames take {}: further pages come from other nodes",
                ByteSize(free),
                ByteSize(self.bytes)
            ));
        }
        Ok(Some(preferred))
    }

    /// Checks where the pages are, after the first one was touched. Refuses new memory that was
    /// asked for on another node.
    pub(super) fn check_node(
        &self,
        memory: &mut RackMemory,
        preferred: Option<&Preferred>,
    ) -> Result<(), MemoryError> {
        let Some(Preferred { node: wanted, had_pages }) = preferred else { return Ok(()) };
        memory.node = Some(*wanted);
        let pages = survey(&memory.mapping, &memory.file)?;
        let mut elsewhere = pages.iter().filter(|(_, node)| node != wanted);
        let Some((offset, found)) = elsewhere.next() else { return Ok(()) };
        if self.node == FramesNode::Asked(*wanted) && !had_pages {
            let (offset, found, wanted) = (*offset, *found, *wanted);
            return Err(MemoryError::Elsewhere { offset, found, wanted, option: "--frames-node " });
        }
        memory.warnings.push(format!(
            "{} of {} examined pages of the frames are not on NUMA node {wanted}, the first of them on node {found}: pages stay where they are until the rack's memory is made anew",
            1 + elsewhere.count(),
            pages.len()
        ));
        Ok(())
    }
}

/// The NUMA nodes of some pages of a rack's memory, with the number of these pages on each. Empty
/// if no page exists, or if the kernel does not tell which do: for a device, and for a hugetlbfs
/// file whose pages are not all allocated.
pub fn sampled_nodes(mapping: &Mapping, file: &File) -> Result<BTreeMap<u32, u32>, MemoryError> {
    const HUGETLBFS: u64 = 0x9584_58f6;
    let blocks = file.metadata().map_err(system("examine", "the memory"))?.blocks();
    let kind = fstatfs(file).map(|found| found.f_type);
    let is_huge = kind.is_ok_and(|kind| u64::try_from(kind).is_ok_and(|kind| kind == HUGETLBFS));
    let mut nodes = BTreeMap::new();
    if is_huge && blocks.saturating_mul(512) < mapping.len() {
        return Ok(nodes);
    }
    for (_, node) in survey(mapping, file)? {
        *nodes.entry(node).or_insert(0) += 1;
    }
    Ok(nodes)
}

/// Offsets and nodes of some pages that exist: the first and the last one, and a scattered sample.
/// Touches no page that does not exist, except on a hugetlbfs, where all seem to exist.
pub(super) fn survey(mapping: &Mapping, file: &File) -> Result<Vec<(u64, u32)>, MemoryError> {
    let pages = mapping.len() / PAGE;
    // Steps of the golden ratio reach all parts of the memory without a regular pattern.
    let scattered = (2..SAMPLE).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % pages.max(1));
    let mut offsets: Vec<u64> = [0, pages.saturating_sub(1)]
        .into_iter()
        .chain(scattered)
        .filter_map(|page| next_page(file, page * PAGE, mapping.len()))
        .collect();
    offsets.sort_unstable();
    offsets.dedup();
    let node = |offset| -> io::Result<(u64, u32)> { Ok((offset, mapping.node_at(offset)?)) };
    let found: io::Result<Vec<_>> = offsets.into_iter().map(node).collect();
    found.map_err(system("find the NUMA node of", "memory"))
}

/// The first page from `offset` on that exists. `None` if there is none, or if the file system
/// can't tell.
fn next_page(file: &File, offset: u64, len: u64) -> Option<u64> {
    let found = seek(file, SeekFrom::Data(offset)).ok()?;
    (found < len).then_some(found - found % PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_do_not_exist_are_not_touched() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(8 << 20).unwrap();
        let mapping = Mapping::new(&file, 8 << 20).unwrap();
        assert_eq!(survey(&mapping, &file).unwrap(), []);
        let pages = [0, 5 << 20, (8 << 20) - PAGE];
        for offset in pages {
            mapping.write(offset, &[1]).unwrap();
        }
        let found: Vec<u64> =
            survey(&mapping, &file).unwrap().into_iter().map(|(offset, _)| offset).collect();
        assert_eq!(found, pages);
        assert_eq!(sampled_nodes(&mapping, &file).unwrap().values().sum::<u32>(), 3);
        let blocks = file.metadata().unwrap().blocks();
        assert_eq!(blocks, 3 * PAGE / 512);
    }
}
