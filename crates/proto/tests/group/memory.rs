use rackpool_model::RackId;
use rackpool_proto::multicast::block_map::BlockMap;
use rackpool_proto::multicast::{Block, Version};
use rackpool_sync::SplitMix64;

/// A rack's memory for the object. It outlives the program that writes it.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    pub(crate) rack: RackId,
    /// The object that the rack receives, as other racks read it.
    pub(crate) version: Version,
    pub(crate) map: BlockMap,
    /// The bytes of each block, as one number.
    pub(crate) bytes: Vec<u64>,
    pub(crate) is_visible: bool,
}

/// The bytes of a block of the object.
pub(crate) fn content(version: Version, block: Block) -> u64 {
    SplitMix64::mix(version.0 << 32 | u64::from(block.0))
}

impl Memory {
    pub(crate) fn empty(rack: RackId, version: Version, blocks: u32) -> Self {
        let map = BlockMap::empty(blocks);
        Self { rack, version, map, bytes: vec![0; blocks as usize], is_visible: false }
    }

    /// The memory of the root.
    pub(crate) fn fill(&mut self, version: Version) {
        self.version = version;
        self.map = BlockMap::full(self.map.blocks());
        self.bytes = (0..self.map.blocks()).map(|block| content(version, Block(block))).collect();
    }

    /// Other use of the memory.
    pub(crate) fn reuse(&mut self) {
        self.version = Version(u64::from(u32::MAX));
        self.map = BlockMap::empty(self.map.blocks());
        self.bytes.fill(0xdead);
        self.is_visible = false;
    }

    /// A block that counts and whose bytes are not those of the object.
    pub(crate) fn wrong(&self, version: Version) -> Option<Block> {
        let counted = (0..self.map.blocks()).map(Block).filter(|block| self.map.has(*block));
        counted.into_iter().find(|block| self.bytes[block.0 as usize] != content(version, *block))
    }

    pub(crate) fn is_complete(&self, version: Version) -> bool {
        self.version == version && self.map.is_full() && self.wrong(version).is_none()
    }
}
