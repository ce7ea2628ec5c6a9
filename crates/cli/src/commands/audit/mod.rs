//! `rackpool audit`: what the bytes in use are. It walks along everything that roots lead to and
//! compares that with the objects that the racks of this host have in use. It only reads.

mod census;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context;
use rackpool_client::Pool;
use rackpool_kv::Table;
use rackpool_model::{GlobalAddr, RackId};
use rackpool_output::{chain, outln};
use rackpool_wire::metadata::PoolStatus;

use super::json;
use super::racks::{Reach, WhichPool, own_addresses, reach};
use super::roots::{Content, Root, look_at_roots, open_pool};
use census::RackFiles;

/// Which pool, and how much is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    #[command(flatten)]
    which: WhichPool,
    /// Also list the addresses of the objects that no root leads to.
    #[arg(long)]
    list: bool,
    /// Print JSON, as docs/design/seeing.md describes it.
    #[arg(long)]
    json: bool,
}

/// Bytes and objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) objects: u64,
    pub(super) bytes: u64,
}

impl Share {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }
}

/// What a root leads to.
#[derive(Clone, Debug)]
pub(super) struct RootShare {
    pub(super) name: String,
    /// Why it is not known if it is not.
    pub(super) content: Result<Content, String>,
    pub(super) share: Share,
    /// Parts that could not be read: what they lead to is missing in the share.
    pub(super) unread: u64,
}

/// What the objects in use are.
#[derive(Debug, Default)]
pub(super) struct Audit {
    /// The racks whose objects were counted.
    pub(super) racks: Vec<RackId>,
    /// Those whose objects were not, and why.
    pub(super) missing: Vec<(RackId, String)>,
    pub(super) total: Share,
    pub(super) roots: Vec<RootShare>,
    /// How many clients there are.
    pub(super) clients: u64,
    /// In caches and reservations of clients, and on their way between racks.
    pub(super) held: Share,
    /// Allocated or freed while this was looking.
    pub(super) changing: Share,
    /// What no root leads to.
    pub(super) unreached: Share,
    /// The same by the size of the objects, in bytes.
    pub(super) sizes: BTreeMap<u64, Share>,
    /// The same one by one, with the bytes of each.
    pub(super) list: Vec<(GlobalAddr, u64)>,
}

/// Says what the bytes in use are.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let server = options.which.server()?;
    let status = server.status()?;
    let roots = look_at_roots(&server, &status)?;
    let audit = take(&status, roots)?;
    if options.json {
        outln!("{:#}", json::audit(&audit, options.list))?;
        return Ok(());
    }
    text::print(&audit, options.list)
}

/// The racks of this host whose files can be looked at, and why others can't.
fn local_racks(status: &PoolStatus) -> (Vec<RackFiles>, Vec<(RackId, String)>) {
    let own = own_addresses();
    let (mut racks, mut missing) = (Vec::new(), Vec::new());
    for member in &status.members {
        let why = match reach(status, member, &own) {
            Reach::Here => match RackFiles::open(member.rack, &member.control_path) {
                Ok(files) => {
                    racks.push(files);
                    continue;
                }
                Err(error) => chain(error.as_ref()),
            },
            Reach::Elsewhere => "on another host: ask there".into(),
            Reach::Down => "its lease has run out".into(),
            Reach::Left => "its daemon has ended on purpose".into(),
        };
        missing.push((member.rack, why));
    }
    (racks, missing)
}

/// The objects in use, in order of their addresses.
fn objects_of(racks: &[RackFiles]) -> anyhow::Result<Vec<(GlobalAddr, u64)>> {
    let mut objects = Vec::new();
    for rack in racks {
        rack.add_objects(&mut objects).with_context(|| format!("{} can't be read", rack.rack()))?;
    }
    objects.sort_unstable();
    // A page that has just moved may have been seen in both racks.
    objects.dedup_by_key(|(addr, _)| *addr);
    Ok(objects)
}

fn notes_of(racks: &[RackFiles]) -> anyhow::Result<(BTreeSet<GlobalAddr>, u64)> {
    let mut notes = BTreeSet::new();
    let mut clients = 0;
    for rack in racks {
        clients += rack.add_notes(&mut notes)?;
    }
    Ok((notes, clients))
}

/// Looks at everything. What is allocated or freed meanwhile is told apart by looking twice.
fn take(status: &PoolStatus, roots: Vec<Root>) -> anyhow::Result<Audit> {
    let (racks, missing) = local_racks(status);
    let pool = open_pool(status)?;
    let (mut notes, _) = notes_of(&racks)?;
    let objects = objects_of(&racks)?;
    let mut audit =
        Audit { missing, racks: racks.iter().map(RackFiles::rack).collect(), ..Audit::default() };
    let mut is_reached = vec![false; objects.len()];
    for root in roots {
        let mut share = Share::default();
        let mut reach = |addr: GlobalAddr| {
            if let Ok(index) = objects.binary_search_by_key(&addr, |(addr, _)| *addr)
                && !std::mem::replace(&mut is_reached[index], true)
            {
                share.add(objects[index].1);
            }
        };
        let (content, unread) = match follow(&pool, &root, &mut reach) {
            Ok(unread) => (root.content, unread),
            Err(why) => (Err(why), 0),
        };
        audit.roots.push(RootShare { name: root.name, content, share, unread });
    }
    // The pool's own client is one of them.
    let (later, clients) = notes_of(&racks)?;
    notes.extend(later);
    audit.clients = clients.saturating_sub(1);
    let again = objects_of(&racks)?;
    for ((addr, bytes), is_reached) in objects.into_iter().zip(is_reached) {
        audit.total.add(bytes);
        if is_reached {
            continue;
        }
        if notes.contains(&addr) {
            audit.held.add(bytes);
        } else if again.binary_search(&(addr, bytes)).is_err() {
            audit.changing.add(bytes);
        } else {
            audit.unreached.add(bytes);
            audit.sizes.entry(bytes).or_default().add(bytes);
            audit.list.push((addr, bytes));
        }
    }
    Ok(audit)
}

/// Visits every object that a root leads to; returns how many parts could not be read.
fn follow(
    pool: &Arc<Pool>,
    root: &Root,
    visit: &mut impl FnMut(GlobalAddr),
) -> Result<u64, String> {
    let walked = match root.content.clone()? {
        Content::Table => Table::walk(Arc::clone(pool), root.addr, |_, addr, _| visit(addr))
            .map(|walk| walk.unread),
        Content::Volume => rackpool_fs::walk_volume(pool, root.addr, visit),
        // What it leads to only its program knows.
        Content::Other => {
            visit(root.addr);
            Ok(0)
        }
    };
    walked.map_err(|error| chain(&error))
}
