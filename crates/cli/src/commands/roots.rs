//! The roots of a pool, and the content that they lead to. It only reads.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use rackpool_admin::{MemberReach, MetadataServer, own_addresses, reach};
use rackpool_client::{ClientOptions, Pool, within};
use rackpool_model::{GlobalAddr, PageSize, RackId};
use rackpool_output::chain;
use rackpool_wire::metadata::{Member, PoolStatus};
use serde_json::{Value, json};

/// A root.
#[derive(Clone, Debug)]
pub(super) struct Root {
    pub(super) name: String,
    pub(super) addr: GlobalAddr,
    pub(super) page: RootPage,
    /// The content, or why it is unknown.
    pub(super) content: Result<Content, String>,
}

/// The page that a root points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RootPage {
    /// The page has its home in this rack.
    Home(RackId),
    /// The page is lost with the memory of its rack.
    Lost,
    /// The pool has no such page.
    None,
}

/// The kind of an object, judged by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A table.
    Table,
    /// A volume of files.
    Volume,
    /// A store of objects.
    Store,
    /// An object of a program's own.
    Other,
}

impl Content {
    /// The kind in one word.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Volume => "volume",
            Self::Store => "store",
            Self::Other => "other",
        }
    }

    /// Returns the kind of an object that begins with these bytes.
    fn of(first: &[u8; 8]) -> Self {
        if rackpool_kv::begins_table(first) {
            Self::Table
        } else if rackpool_fs::begins_volume(first) {
            Self::Volume
        } else if rackpool_objects::begins_store(first) {
            Self::Store
        } else {
            Self::Other
        }
    }
}

impl RootPage {
    /// The state in one word: `live`, `lost` or `none`.
    pub(super) const fn state(self) -> &'static str {
        match self {
            Self::Home(_) => "live",
            Self::Lost => "lost",
            Self::None => "none",
        }
    }
}

impl fmt::Display for RootPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // `pad` applies the width to the whole text.
            Self::Home(rack) => f.pad(&rack.to_string()),
            Self::Lost => f.pad("lost"),
            Self::None => f.pad("no page"),
        }
    }
}

/// Escapes a name for printing: names are any text, which may include control characters.
pub(super) fn printable(name: &str) -> String {
    if name.chars().any(char::is_control) { name.escape_debug().to_string() } else { name.into() }
}

/// Inspects all roots, through a daemon of this host if there is one.
pub(super) fn look_at_roots(
    server: &MetadataServer,
    pool: &PoolStatus,
) -> anyhow::Result<Vec<Root>> {
    let reader = open_pool(pool).map_err(|error| chain(error.as_ref()));
    pool.roots.iter().map(|(name, addr)| look(server, pool, &reader, name, *addr)).collect()
}

fn look(
    server: &MetadataServer,
    pool: &PoolStatus,
    reader: &Result<Arc<Pool>, String>,
    name: &str,
    addr: GlobalAddr,
) -> anyhow::Result<Root> {
    let page = PageSize::from_bytes(pool.page_bytes).ok().and_then(|size| addr.page(size));
    let entry = page.map_or(Ok(None), |page| server.explain(page))?;
    let page = match entry {
        None => RootPage::None,
        Some(entry) => entry.home.map_or(RootPage::Lost, RootPage::Home),
    };
    let content = match page {
        RootPage::None => Err("the pool has no such page".into()),
        RootPage::Lost => Err("its page is lost".into()),
        RootPage::Home(rack) if !pool.members.iter().any(|of| of.rack == rack && of.alive) => {
            Err(format!("{rack} is down"))
        }
        RootPage::Home(_) => {
            reader.as_ref().map_err(Clone::clone).and_then(|pool| content_of(pool, addr))
        }
    };
    Ok(Root { name: name.into(), addr, page, content })
}

/// Returns a rack of this host through which the pool can be used.
pub(super) fn local_member(pool: &PoolStatus) -> Option<&Member> {
    let own = own_addresses();
    pool.members.iter().find(|member| reach(pool, member, &own) == MemberReach::Here)
}

/// Opens the pool through a daemon of this host.
pub(super) fn open_pool(pool: &PoolStatus) -> anyhow::Result<Arc<Pool>> {
    open_pool_at(local_member(pool).context(NO_LOCAL_RACK)?)
}

/// Opens the pool through the daemon of this rack, which must be on this host.
pub(super) fn open_pool_in(pool: &PoolStatus, rack: RackId) -> anyhow::Result<Arc<Pool>> {
    open_pool_at(member_here(pool, rack)?)
}

/// The rack's entry, if the rack is on this host.
pub(super) fn member_here(pool: &PoolStatus, rack: RackId) -> anyhow::Result<&Member> {
    let own = own_addresses();
    let member = pool.members.iter().find(|member| member.rack == rack);
    let member = member.filter(|member| reach(pool, member, &own) == MemberReach::Here);
    member.with_context(|| {
        format!("{rack} is not served on this host: `rackpool status` lists the racks")
    })
}

fn open_pool_at(member: &Member) -> anyhow::Result<Arc<Pool>> {
    // For the main thread and one worker.
    let options = ClientOptions::with_socket(&member.control_path).threads(2).exact_daemon(true);
    Ok(Arc::new(Pool::open(options)?))
}

/// Returns the content at an address, or why it is unknown.
pub(super) fn content_of(pool: &Pool, addr: GlobalAddr) -> Result<Content, String> {
    let mut first = [0; 8];
    pool.read(addr, &mut first).map_err(|error| chain(&error))?;
    Ok(Content::of(&first))
}

/// The most roots that [`stores_of`] reads, and the time for each.
const MOST_ROOTS: usize = 256;
const ROOT_WITHIN: Duration = Duration::from_millis(100);
/// After this time the remaining roots are not read.
const ROOTS_WITHIN: Duration = Duration::from_secs(1);

/// The names of the roots that lead to object stores. `None` if no rack of this host can be used,
/// or if it can't be found out within about a second.
pub(super) fn stores_of(pool: &PoolStatus) -> Option<Vec<String>> {
    if pool.roots.len() > MOST_ROOTS {
        return None;
    }
    let (reader, begin) = (open_pool(pool).ok()?, Instant::now());
    let mut stores = Vec::new();
    for (name, addr) in &pool.roots {
        if begin.elapsed() > ROOTS_WITHIN {
            return None;
        }
        if within(ROOT_WITHIN, || content_of(&reader, *addr)) == Ok(Content::Store) {
            stores.push(name.clone());
        }
    }
    Some(stores)
}

/// Why only the metadata server can be asked.
pub(super) const NO_LOCAL_RACK: &str =
    "no rack of the pool is served on this host: ask on the host of a rack";

/// The output of `rackpool root ls --json`: docs/design/seeing.md.
pub(super) fn roots_as_json(roots: &[Root]) -> Value {
    let root = |root: &Root| {
        let home = match root.page {
            RootPage::Home(rack) => Some(rack.0),
            RootPage::Lost | RootPage::None => None,
        };
        json!({
            "name": root.name,
            "address": root.addr.to_string(),
            "state": root.page.state(),
            "home": home,
            "content": root.content.as_ref().ok().map(|content| content.name()),
            "reason": root.content.as_ref().err(),
        })
    };
    json!({"roots": roots.iter().map(root).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_somewhere_is_told_by_its_first_bytes() {
        assert_eq!(Content::of(b"rackp-kv"), Content::Table);
        assert_eq!(Content::of(b"rackp-fs"), Content::Volume);
        assert_eq!(Content::of(b"rackp-ob"), Content::Store);
        assert_eq!(Content::of(b"rackpool"), Content::Other);
    }

    #[test]
    fn a_name_that_would_move_the_cursor_is_escaped() {
        assert_eq!(printable("inventory: größe"), "inventory: größe");
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
    }
}
