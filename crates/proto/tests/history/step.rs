use proptest::prelude::*;
use rackpool_model::{GlobalAddr, Incarnation, MemoryId, PageId, RackId};
use rackpool_wire::metadata::{MetadataRequest, RackAnnouncement};

/// What happens next.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A request comes in; nothing is polled, so that the next one may join its batch.
    Ask(MetadataRequest),
    Wait {
        ms: u16,
    },
    Poll,
    Commit,
    Fail,
    Kill {
        batch_was_durable: bool,
    },
}

/// Few racks, memories and names, so that they meet often.
pub(crate) fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => any_request().prop_map(Step::Ask),
        3 => (0_u16..1500).prop_map(|ms| Step::Wait { ms }),
        3 => Just(Step::Poll),
        6 => Just(Step::Commit),
        1 => Just(Step::Fail),
        1 => any::<bool>().prop_map(|batch_was_durable| Step::Kill { batch_was_durable }),
    ]
}

fn any_request() -> impl Strategy<Value = MetadataRequest> {
    let rack = || (1_u16..4).prop_map(RackId);
    let incarnation = || (1_u64..6).prop_map(Incarnation);
    let name = || prop_oneof![9 => "[ab]", 1 => Just(String::new())];
    let addr = || prop::option::of((1_u64..3).prop_map(GlobalAddr::from_raw));
    prop_oneof![
        4 => any_announcement().prop_map(MetadataRequest::Register),
        4 => (rack(), incarnation(), 0_u32..3, any::<u64>()).prop_map(
            |(rack, incarnation, free_frames, seen_version)| MetadataRequest::Heartbeat {
                rack,
                incarnation,
                free_frames,
                seen_version,
            }
        ),
        1 => (rack(), incarnation())
            .prop_map(|(rack, incarnation)| MetadataRequest::Leave { rack, incarnation }),
        2 => (0_u32..40).prop_map(|page| MetadataRequest::Locate { page: PageId(page) }),
        2 => name().prop_map(|name| MetadataRequest::GetRoot { name }),
        4 => (name(), addr(), addr())
            .prop_map(|(name, expected, new)| MetadataRequest::PutRoot { name, expected, new }),
        2 => Just(MetadataRequest::Status),
    ]
}

fn any_announcement() -> impl Strategy<Value = RackAnnouncement> {
    // A memory mostly comes with its own rack and its own number of frames.
    let mistake = prop_oneof![8 => Just(0_u16), 1 => 1_u16..3];
    let page_bytes = prop_oneof![9 => Just(2_u64 << 20), 1 => Just(4096), 1 => Just(17)];
    (1_u16..7, 1_u64..6, mistake, page_bytes, 0..2).prop_map(
        |(memory, incarnation, mistake, page_bytes, address)| RackAnnouncement {
            rack: RackId(1 + (memory + mistake) % 3),
            memory: MemoryId(u128::from(memory)),
            incarnation: Incarnation(incarnation),
            frames: u32::from(memory + mistake / 2),
            page_bytes,
            control_path: String::new(),
            fabric_address: format!("tcp:{address}"),
        },
    )
}
