//! `rackpool audit`: accounts for the bytes in use. It walks all objects reachable from roots and
//! compares them with the objects in use in the racks of this host. It only reads.

mod account;
pub(super) mod census;
mod json;
mod text;

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::Context;
use rackpool_admin::{MemberReach, own_addresses, reach};
use rackpool_client::Pool;
use rackpool_kv::Table;
use rackpool_model::{GlobalAddr, RackId};
use rackpool_output::{chain, outln};
use rackpool_wire::metadata::PoolStatus;

use super::roots::{Content, Root, look_at_roots, open_pool};
use crate::pool_arguments::WhichPool;
use account::{Audit, RootShare, Share};
use census::RackFiles;

/// Which pool, and how much is told.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    which: WhichPool,
    /// Also list the address and size of each object that no root reaches.
    #[arg(long)]
    list: bool,
    /// Print JSON. docs/design/seeing.md describes the format.
    #[arg(long)]
    json: bool,
}

/// Audits the pool and prints the result.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
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

/// The racks of a pool as this host sees them.
struct LocalRacks {
    /// Those of this host whose files can be read.
    racks: Vec<RackFiles>,
    /// The others, with the reason.
    missing: Vec<(RackId, String)>,
}

fn local_racks(status: &PoolStatus) -> LocalRacks {
    let own = own_addresses();
    let (mut racks, mut missing) = (Vec::new(), Vec::new());
    for member in &status.members {
        let why = match reach(status, member, &own) {
            MemberReach::Here => match RackFiles::open(member.rack, &member.control_path) {
                Ok(files) => {
                    racks.push(files);
                    continue;
                }
                Err(error) => chain(error.as_ref()),
            },
            MemberReach::Elsewhere => "on another host: run the audit there".into(),
            MemberReach::Down => "its lease has expired".into(),
            MemberReach::Left => "its daemon was stopped".into(),
        };
        missing.push((member.rack, why));
    }
    LocalRacks { racks, missing }
}

/// Returns the objects in use, sorted by address.
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

/// What the files of clients note.
struct Notes {
    objects: BTreeSet<GlobalAddr>,
    /// The number of clients.
    clients: u64,
}

fn notes_of(racks: &[RackFiles]) -> anyhow::Result<Notes> {
    let mut objects = BTreeSet::new();
    let mut clients = 0;
    for rack in racks {
        clients += rack.add_notes(&mut objects)?;
    }
    Ok(Notes { objects, clients })
}

/// Takes the census. Objects allocated or freed meanwhile are identified by a second census at the
/// end.
fn take(status: &PoolStatus, roots: Vec<Root>) -> anyhow::Result<Audit> {
    let LocalRacks { racks, missing } = local_racks(status);
    let pool = open_pool(status)?;
    let mut notes = notes_of(&racks)?.objects;
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
    // The audit's own client is one of them.
    let Notes { objects: later, clients } = notes_of(&racks)?;
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

/// Visits every object reachable from a root. Returns the number of parts that could not be read.
fn follow(
    pool: &Arc<Pool>,
    root: &Root,
    visit: &mut impl FnMut(GlobalAddr),
) -> Result<u64, String> {
    let walked = match root.content.clone()? {
        Content::Table => Table::walk(Arc::clone(pool), root.addr, |_, addr, _| visit(addr))
            .map(|walk| walk.unread),
        Content::Volume => rackpool_fs::walk_volume(pool, root.addr, visit),
        Content::Store => {
            return rackpool_objects::walk_store(pool, root.addr, visit)
                .map_err(|error| chain(&error));
        }
        // Only its program knows what the object leads to.
        Content::Other => {
            visit(root.addr);
            Ok(0)
        }
    };
    walked.map_err(|error| chain(&error))
}
