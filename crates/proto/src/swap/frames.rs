use rackpool_model::{FrameId, FrameWord, PageId, PageWord};

use crate::heat::Found;

/// The rack's memory as its machine reads it. The machine changes nothing here: it emits
/// [`PeerAction::StoreWord`](super::PeerAction::StoreWord), and the shell executes all actions
/// before the next event.
pub trait Frames {
    /// Returns the frame and word of a page of this rack, free pages included.
    fn find(&self, page: PageId) -> Option<FrameWord>;
    /// Returns the word of a frame; `None` if there is no such frame.
    fn word(&self, frame: FrameId) -> Option<PageWord>;
    /// Returns a free frame.
    fn spare(&self) -> Option<FrameId>;
    /// Returns the free pages of this rack, those to be given away first at the beginning.
    fn free_pages(&self) -> impl Iterator<Item = PageId>;
    /// Returns the coldest page that may move, other than the `busy` ones.
    fn coldest(&self, busy: &dyn Fn(PageId) -> bool) -> Option<PageId>;
    /// Returns the hotness of the page in this rack.
    fn heat(&self, page: PageId) -> Found;
    /// Returns true if the page rests, or must not move for another reason.
    fn stays(&self, page: PageId) -> bool;
}
