//! Words of shared memory that carry meaning by themselves.

use rackpool_model::{GlobalAddr, PageEvent, PageId, PageSize, PageState, PageWord, SizeClass};
use rackpool_shm::access::AccessSlot;
use rackpool_shm::metadata::{MetadataBit, MetadataLayout, PageUse};
use rackpool_wire::rack::{RackAnswer, RackRequest};

use crate::Input;
use crate::memory::zeroes;

/// Requests and answers are encoded again to the same words; page words change by allowed steps
/// only; a slab header names no more objects than the page has; an address is split into a page and
/// an offset, or is refused.
pub fn words(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (code, status) = (input.byte(), input.half());
    let words: [u64; 6] = std::array::from_fn(|_| input.word());
    let arguments = std::array::from_fn(|at| words[at]);
    if let Some(request) = RackRequest::from_words(code, arguments) {
        let (code, words) = request.to_words();
        assert_eq!(RackRequest::from_words(code, words), Some(request));
    }
    for status in [status, status % 16] {
        let values = std::array::from_fn(|at| words[at]);
        if let Some(answer) = RackAnswer::from_words(status, values) {
            let (status, values) = answer.to_words();
            assert_eq!(RackAnswer::from_words(status, values), Some(answer));
        }
    }
    let Ok(size) = PageSize::from_bytes(1 << (12 + input.below(19))) else { return };
    for word in words {
        page_word(PageWord::from_raw(word));
        header(word, size);
        address(GlobalAddr::from_raw(word), size);
    }
    announcement(words[0]);
}

fn page_word(word: PageWord) {
    for event in [
        PageEvent::Allocated,
        PageEvent::Frozen,
        PageEvent::Thawed,
        PageEvent::Left,
        PageEvent::Quiesced,
        PageEvent::Arrived,
    ] {
        let Ok(next) = word.apply(event) else { continue };
        assert!(word.state().is_some(), "{word:?} is no word of this release, but took {event:?}");
        assert_eq!(next.page(), word.page(), "{event:?} gave the frame another page");
        assert_ne!(next, word, "{event:?} changed nothing");
        // A client that knows a live page compares page words: they differ once the page was gone.
        let was_gone = matches!(word.state(), Some(PageState::Free | PageState::Arriving));
        if was_gone && next.is_readable() {
            assert_eq!(next.epoch(), word.epoch().next());
        }
    }
}

fn header(raw: u64, size: PageSize) {
    let usage = PageUse::from_raw(raw, size);
    assert_eq!(PageUse::from_raw(usage.to_raw(), size), usage);
    let span = usage.span_bytes(size);
    match usage {
        PageUse::Unused => assert_eq!(span, 0),
        PageUse::Slab(class) | PageUse::Fixed(class) => {
            assert_eq!(span, size.bytes());
            assert!(class.index() < SizeClass::count(size));
            assert!(u64::from(class.objects_per_page(size)) * class.bytes() <= size.bytes());
        }
        PageUse::Run { index, pages } => {
            assert!(index < pages && pages <= PageUse::MAX_RUN);
            assert_eq!(span, u64::from(pages - index) * size.bytes());
        }
    }
}

fn address(addr: GlobalAddr, size: PageSize) {
    let offset = addr.offset(size);
    assert!(offset < size.bytes());
    if let Some(page) = addr.page(size) {
        assert_eq!(GlobalAddr::new(page, offset, size), Ok(addr));
        assert_ne!(page, PageId(0));
    }
    // The bit of every object that a page can hold is in the file.
    let layout = MetadataLayout::new(size, 3);
    for class in (0..SizeClass::count(size)).filter_map(|index| SizeClass::from_index(index, size))
    {
        let Ok(index) = u32::try_from(offset >> class.bits()) else { continue };
        let MetadataBit { word, mask } = layout.bit(rackpool_model::FrameId(2), class, index);
        assert!(word.is_multiple_of(8) && word + 8 <= layout.bytes() && mask.is_power_of_two());
    }
}

fn announcement(raw: u64) {
    // An access slot is a word of the client's file: any value names a frame or none.
    let memory = zeroes(64);
    memory.write(0, &raw.to_le_bytes()).unwrap();
    let slot = memory.view::<AccessSlot>(0).unwrap();
    if let Some(announced) = slot.announced() {
        assert_eq!((u64::from(announced.frame.0) << 2) | announced.usage as u64, raw);
    }
}
