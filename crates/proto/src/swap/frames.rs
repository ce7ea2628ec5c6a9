use rackpool_model::{FrameId, PageId, PageWord};

use crate::heat::Found;

/// A page that a rack would give for a hot one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// The page.
    pub page: PageId,
    /// Whether it is itself hot.
    pub hot: bool,
}

/// What a rack's machine has to see of the rack's memory. It changes nothing here: it asks for
/// [`RackAction::StoreWord`](super::RackAction::StoreWord), and the shell carries out all actions
/// before it hands in the next event.
pub trait Frames {
    /// Where a page of this rack lies, free pages included, and its word.
    fn find(&self, page: PageId) -> Option<(FrameId, PageWord)>;
    /// The word of a frame; `None` when there is no such frame.
    fn word(&self, frame: FrameId) -> Option<PageWord>;
    /// A free frame, if there is one.
    fn spare(&self) -> Option<FrameId>;
    /// What to give for a hot page: a free page whose frame is not the last, or the coldest one
    /// that may move, but none of the `busy` ones.
    fn offer(&self, busy: &dyn Fn(PageId) -> bool) -> Option<Offered>;
    /// How hot the page is in this rack.
    fn heat(&self, page: PageId) -> Found;
    /// Whether the page rests here, or must not move for another reason.
    fn stays(&self, page: PageId) -> bool;
}
