//! Named addresses that clients read and change. In the history a name is a further word.

use rackpool_model::{GlobalAddr, PageId};
use rackpool_proto::planted_bugs::{Bug, Bugs};
use rackpool_wire::metadata::{MetadataReply, MetadataRequest, Refusal};

use crate::client::Answer;
use crate::connection::Owner;
use crate::history::Kind;
use crate::message::Call;
use crate::world::World;

const NAMES: [&str; 2] = ["table", "tree"];

/// The page id of the first name in the history; no rack has such a page.
const FIRST: u32 = 1 << 30;

pub(crate) fn root_pages() -> impl Iterator<Item = PageId> {
    (FIRST..).take(NAMES.len()).map(PageId)
}

fn name_of(page: PageId) -> Option<&'static str> {
    let index = usize::try_from(page.0.checked_sub(FIRST)?).ok()?;
    NAMES.get(index).copied()
}

pub(crate) fn is_root(page: PageId) -> bool {
    name_of(page).is_some()
}

/// The address 0 stands for no name.
fn address(raw: u64) -> Option<GlobalAddr> {
    (raw != 0).then(|| GlobalAddr::from_raw(raw))
}

/// Returns the request of an operation on a name.
pub(crate) fn root_request(page: PageId, kind: Kind) -> Option<MetadataRequest> {
    let name = name_of(page)?.to_owned();
    match kind {
        Kind::Read => Some(MetadataRequest::GetRoot { name }),
        Kind::CompareAndSwap { expected, new } => {
            let (expected, new) = (address(expected), address(new));
            Some(MetadataRequest::PutRoot { name, expected, new })
        }
        Kind::Write(_) | Kind::FetchAndAdd(_) => None,
    }
}

impl<B: Bugs> World<B> {
    /// Chooses a name and an operation on it.
    pub(crate) fn choose_root(&mut self) -> Option<(PageId, usize, Kind)> {
        let page = PageId(FIRST + u32::try_from(self.rng.below(NAMES.len())).ok()?);
        let there = name_of(page).map_or(0, |name| self.server.disk.root(name));
        let kind = match self.rng.below(10) {
            0..4 => Kind::Read,
            // Removes the name if it is set.
            4 => Kind::CompareAndSwap { expected: there, new: 0 },
            5 => Kind::CompareAndSwap { expected: 0, new: self.rng.next() | 1 },
            _ => Kind::CompareAndSwap { expected: there, new: self.rng.next() | 1 },
        };
        self.history.has_room(page, 0).then_some((page, 0, kind))
    }

    /// Sends a client's request directly to the metadata server.
    pub(crate) fn ask_root_directly(&mut self, call: Call) {
        let one = self.history.get(call.operation);
        let request = root_request(one.page, one.kind);
        match (self.connect(Owner::Client(call)), request) {
            (Some(connection), Some(request)) => self.tell_server(connection, 1, request),
            _ => self.answer(call, Answer::Failed),
        }
    }

    /// Handles the answer; `None`: there will be none, and the operation is indeterminate.
    pub(crate) fn root_told(&mut self, call: Call, reply: Option<MetadataReply>) {
        let (addr, changed) = match reply {
            Some(MetadataReply::Root { addr, changed }) => (addr, changed),
            None | Some(MetadataReply::Refused(Refusal::Store(_))) => {
                if reply.is_some() && self.bugs.has(Bug::BelieveTheStore) {
                    self.history.void(call.operation);
                }
                return self.answer(call, Answer::Failed);
            }
            Some(other) => return self.breaks(|| format!("a name is answered with {other:?}")),
        };
        let there = addr.map_or(0, GlobalAddr::raw);
        let found = match self.history.get(call.operation).kind {
            Kind::CompareAndSwap { expected, new } if changed && there == new => expected,
            Kind::CompareAndSwap { expected, .. } if changed || there == expected => {
                return self.breaks(|| {
                    format!("a name was to go from {expected:#x}, says {there:#x}, {changed}")
                });
            }
            _ => there,
        };
        self.seen.named += 1;
        self.answer(call, Answer::Done(found));
    }
}
