//! `rackpool table`: lists, creates, measures, repairs and removes tables.

mod json;
mod measured;

use std::sync::Arc;

use anyhow::{Context, bail};
use rackpool_kv::{Destroyed, KvError, Table, TableOptions};
use rackpool_model::ByteSize;
use rackpool_output::numbers::counted;
use rackpool_output::{UsageError, outln};
use rackpool_wire::bounds::check_name;

use super::root::{address_of, print_roots, remove_root};
use super::roots::{Content, content_of, look_at_roots, open_pool, printable, roots_as_json};
use crate::pool_arguments::WhichPool;
use measured::measure;

/// What is done.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Action {
    /// List the names that lead to tables and volumes.
    Ls(Shown),
    /// Create an empty table.
    Create(Create),
    /// Show a table's entries, bytes and segments, and the racks of its pages.
    Stat(Stat),
    /// Remove the entries whose memory was lost with that of their rack. Until then reads of their
    /// keys fail, and so may reads of some absent keys.
    Repair(Named),
    /// Remove a table: first its name, then its memory. Stop all programs that use it before.
    Rm(Named),
}

#[derive(Clone, Debug, clap::Args)]
struct Shown {
    #[command(flatten)]
    which: WhichPool,
    /// Print JSON. docs/design/seeing.md describes the format.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, clap::Args)]
struct Named {
    /// Name of the table.
    name: String,
    #[command(flatten)]
    which: WhichPool,
}

#[derive(Clone, Debug, clap::Args)]
struct Stat {
    /// Name of the table.
    name: String,
    #[command(flatten)]
    shown: Shown,
}

#[derive(Clone, Debug, clap::Args)]
struct Create {
    #[command(flatten)]
    named: Named,
    /// Maximum number of segments, as a power of two: 0 to 18 [default: 16, or less if the page
    /// size requires it].
    #[arg(long, value_name = "N")]
    max_depth: Option<u8>,
    /// Size of a segment in bytes: a power of two from 256 to 1M [default: 32K, or less if the page
    /// size requires it].
    #[arg(long, value_name = "BYTES")]
    segment_size: Option<ByteSize>,
}

/// Runs the chosen action.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    match &options.action {
        Action::Ls(options) => list(options),
        Action::Create(options) => create(options),
        Action::Stat(options) => stat(options),
        Action::Repair(options) => repair(options),
        Action::Rm(options) => remove(options),
    }
}

fn list(options: &Shown) -> anyhow::Result<()> {
    let server = options.which.server()?;
    let mut roots = look_at_roots(&server, &server.status()?)?;
    roots.retain(|root| !matches!(root.content, Ok(Content::Store | Content::Other)));
    if options.json {
        outln!("{:#}", roots_as_json(&roots))?;
        return Ok(());
    }
    print_roots(&roots, "the pool has no tables with names")
}

fn create(options: &Create) -> anyhow::Result<()> {
    let Create { named: Named { name, which }, max_depth, segment_size } = options;
    check_name(name).map_err(UsageError::new)?;
    let shown = printable(name);
    let status = which.server()?.status()?;
    if status.roots.iter().any(|(known, _)| known == name) {
        bail!("the pool has a root '{shown}' already: choose another name (`rackpool root ls`)");
    }
    let pool = open_pool(&status)?;
    let usual = TableOptions::for_pages(pool.page_bytes());
    let layout = TableOptions {
        max_depth: max_depth.unwrap_or(usual.max_depth),
        segment_bytes: segment_size.map_or(usual.segment_bytes, |size| size.0),
    };
    let table = Table::open_or_create(pool, name, &layout).map_err(|error| match error {
        KvError::Option { .. } => anyhow::Error::new(UsageError::new(error)),
        error => error.into(),
    })?;
    outln!("made the table '{shown}' at {}", table.addr())?;
    Ok(())
}

fn stat(options: &Stat) -> anyhow::Result<()> {
    let Stat { name, shown: Shown { which, json } } = options;
    let server = which.server()?;
    let status = server.status()?;
    let addr = address_of(&status, name)?;
    let pool = open_pool(&status)?;
    let content = content_of(&pool, addr).map_err(|why| lost(name, &why))?;
    let table = match content {
        Content::Table => addr,
        Content::Volume => rackpool_fs::table_of(&*pool, addr)?.with_context(|| {
            format!(
                "the volume '{}' is incomplete: mount it once, which completes it",
                printable(name)
            )
        })?,
        Content::Store => bail!(
            "the root '{}' leads to a store of objects: `rackpool objects ls --store NAME` lists them",
            printable(name)
        ),
        Content::Other => {
            bail!(
                "the root '{}' does not lead to a table: `rackpool table ls` lists the tables",
                printable(name)
            )
        }
    };
    let found = measure(&server, &status, pool, table)?;
    if *json {
        outln!("{:#}", json::table(name, table, content, &found))?;
        return Ok(());
    }
    let kind = match content {
        Content::Volume => " of files: what follows is of its table of names",
        _ if !found.walk.is_complete => ", incomplete: the next program that opens it completes it",
        _ => "",
    };
    outln!("{:<12} '{}' at {table}{kind}", content.name(), printable(name))?;
    outln!("entries      {}", found.entries)?;
    outln!("bytes        {} in {} objects", ByteSize(found.bytes), found.objects)?;
    outln!(
        "segments     {} with entries, {} spare, {} taken by clients",
        found.segments,
        found.spare_segments,
        found.walk.taken_segments
    )?;
    outln!("load factor  {:.2}", found.load_factor())?;
    let mut pages: Vec<String> =
        found.pages.iter().map(|(rack, count)| format!("{count} in {rack}")).collect();
    if found.lost_pages > 0 {
        pages.push(format!("{} lost", found.lost_pages));
    }
    outln!("pages        {}", pages.join(", "))?;
    if found.walk.unread > 0 {
        outln!(
            "not read     {} parts, which are lost or out of reach: what they lead to is not counted",
            found.walk.unread
        )?;
    }
    Ok(())
}

fn lost(name: &str, why: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "the table '{}' can't be read: {why}. If it is lost, `rackpool root rm` removes its name",
        printable(name)
    )
}

fn repair(options: &Named) -> anyhow::Result<()> {
    let Named { name, which } = options;
    let status = which.server()?.status()?;
    let addr = address_of(&status, name)?;
    let pool = open_pool(&status)?;
    let shown = printable(name);
    match content_of(&pool, addr).map_err(|why| lost(name, &why))? {
        Content::Table => {}
        Content::Store => bail!(
            "the root '{shown}' leads to a store of objects: `rackpool objects repair --store NAME` \
             repairs it"
        ),
        Content::Volume | Content::Other => {
            bail!(
                "the root '{shown}' does not lead to a table: `rackpool table ls` lists the tables"
            )
        }
    }
    let mut table = Table::open(pool, addr)?.handle();
    let lost = table.lost_entries()?;
    match table.remove_lost(&lost)? {
        0 => outln!("the table '{shown}' has no lost entries")?,
        removed => {
            let removed = counted(removed, "lost entry", "lost entries");
            outln!("removed {removed} of the table '{shown}': their keys are absent now")?;
        }
    }
    Ok(())
}

fn remove(options: &Named) -> anyhow::Result<()> {
    let Named { name, which } = options;
    let server = which.server()?;
    let status = server.status()?;
    let addr = address_of(&status, name)?;
    let pool = open_pool(&status)?;
    match content_of(&pool, addr).map_err(|why| lost(name, &why))? {
        Content::Table => {}
        Content::Volume => bail!(
            "the root '{}' leads to a volume: remove its files in a mount; `rackpool root rm` removes \
             the name alone",
            printable(name)
        ),
        Content::Store => bail!(
            "the root '{}' leads to a store of objects: `rackpool objects remove-store` removes it",
            printable(name)
        ),
        Content::Other => {
            bail!(
                "the root '{}' does not lead to a table: `rackpool table ls` lists the tables",
                printable(name)
            )
        }
    }
    let table =
        Table::open(Arc::clone(&pool), addr).map_err(|error| lost(name, &error.to_string()))?;
    remove_root(&server, &status, name, addr)?;
    let shown = printable(name);
    let Destroyed { freed, kept, unread } = match table.destroy_reachable() {
        Ok(destroyed) => destroyed,
        Err(error) => {
            // The table is unchanged.
            match pool.set_root(name, None, Some(addr)) {
                Ok(root) if root.changed => {
                    bail!("the table '{shown}' keeps its name and its memory: {error}")
                }
                _ => bail!(
                    "the table at {addr} lost its name '{shown}' and keeps its memory: {error}"
                ),
            }
        }
    };
    outln!("removed the table '{}': {freed} objects are free", shown)?;
    if kept > 0 || unread > 0 {
        outln!(
            "not freed: {kept} objects whose pages are lost or whose racks are away, and what {unread} \
             parts that could not be read led to"
        )?;
    }
    Ok(())
}
