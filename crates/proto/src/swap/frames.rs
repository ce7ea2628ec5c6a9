use rackpool_model::{FrameId, FrameWord, PageId, PageWord};

use crate::heat::Found;

/// A page that a rack offers for a hot one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// The page.
    pub page: PageId,
    /// Whether it is itself hot.
    pub hot: bool,
}

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
    /// Returns a page to offer for a hot one, other than the `busy` ones: a free page if it is not
    /// in the last free frame, else the coldest page that may move.
    fn offer(&self, busy: &dyn Fn(PageId) -> bool) -> Option<Offered>;
    /// Returns the hotness of the page in this rack.
    fn heat(&self, page: PageId) -> Found;
    /// Returns true if the page rests, or must not move for another reason.
    fn stays(&self, page: PageId) -> bool;
}
