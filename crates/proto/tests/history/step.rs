use proptest::prelude::*;
use rackpool_model::{GlobalAddr, Incarnation, MemoryId, PageId, RackId};
use rackpool_wire::metadata::{MetadataRequest, RackAnnouncement};

/// The next step of a history.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A request arrives; the machine is not polled, so the next request may join its batch.
    Ask {
        from: u64,
        request: MetadataRequest,
    },
    /// A rack sends a swap message, mostly about a swap of its own, with its own incarnation and
    /// connection. `rack` is the requester.
    Swap {
        rack: RackId,
        mistake: Mistake,
        say: Say,
    },
    /// The daemons of all racks reconnect to the server, each over a new connection.
    Rejoin,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    None,
    Incarnation,
    Connection,
    /// A rack that takes no part in the swap sends the message.
    Rack,
}

/// The message; numbers choose among the existing pages and swaps.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Say {
    Want { page: u8, offered: u8, nonce: u8 },
    Commit { swap: u8, epoch: u8 },
    Outcome { swap: u8 },
    End { swap: u8 },
}

/// Few racks, memories and names, so that requests often concern the same ones.
pub(crate) fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (1_u64..4, any_request()).prop_map(|(from, request)| Step::Ask { from, request }),
        12 => any_swap(),
        4 => Just(Step::Rejoin),
        2 => (0_u16..1500).prop_map(|ms| Step::Wait { ms }),
        2 => (0_u16..100).prop_map(|ms| Step::Wait { ms }),
        3 => Just(Step::Poll),
        6 => Just(Step::Commit),
        1 => Just(Step::Fail),
        1 => any::<bool>().prop_map(|batch_was_durable| Step::Kill { batch_was_durable }),
    ]
}

fn any_swap() -> impl Strategy<Value = Step> {
    let mistake = prop_oneof![
        10 => Just(Mistake::None),
        1 => Just(Mistake::Incarnation),
        1 => Just(Mistake::Connection),
        1 => Just(Mistake::Rack),
    ];
    let say = prop_oneof![
        4 => any::<(u8, u8)>().prop_map(|(page, offered)| Say::Want { page, offered, nonce: page }),
        4 => any::<(u8, u8)>().prop_map(|(swap, epoch)| Say::Commit { swap, epoch }),
        1 => any::<u8>().prop_map(|swap| Say::Outcome { swap }),
        1 => any::<u8>().prop_map(|swap| Say::End { swap }),
    ];
    let rack = (1_u16..4).prop_map(RackId);
    (rack, mistake, say).prop_map(|(rack, mistake, say)| Step::Swap { rack, mistake, say })
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
        1 => (0_u32..40).prop_map(|page| MetadataRequest::Explain { page: PageId(page) }),
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
            seen: None,
            control_path: String::new(),
            fabric_address: format!("tcp:{address}"),
        },
    )
}
