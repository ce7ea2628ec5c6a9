//! `rackpool objects`: lists, shows, reads, stores, removes and evicts objects of an object store,
//! shows and sets the options of the store, repairs it, and removes it.

mod contents;
mod explain;
mod id;
mod json;
mod settings;
mod text;
mod top;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use rackpool_client::Pool;
use rackpool_kv::now_ms;
use rackpool_model::{ByteSize, RackId};
use rackpool_objects::Store;
use rackpool_output::numbers::counted;
use rackpool_output::{UsageError, outln};
use rackpool_wire::bounds::check_name;

use super::roots::{open_pool, open_pool_in, printable};
use crate::pool_arguments::WhichPool;
use id::Bytes;
pub(super) use id::Id;

/// What is done.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Action {
    /// List the sealed objects: size, metadata, rack, age and checksum of each.
    Ls(Ls),
    /// Show what is known of an object, with its replicas and the time of its last use.
    Stat(Stat),
    /// Explain where an object lies, which programs pin it, and why it may be absent: extents,
    /// replicas, registration, expiry.
    Explain(Stat),
    /// Show live what the store takes in each rack, and its largest objects or the last used ones.
    Top(top::Options),
    /// Write the bytes of an object to a file, or to standard output.
    Get(Get),
    /// Store a file, or standard input, as an object. Creates the store if there is none.
    Put(Put),
    /// Remove objects from all racks.
    Rm(Rm),
    /// Evict objects and replicas of a rack that were unused for longest and that no program uses.
    Evict(Evict),
    /// Show or set the options of a store: capacity, policy, time to live. Creates the store if
    /// options are given and there is none.
    Options(settings::Settings),
    /// Remove what is left of objects whose memory was lost with that of their rack. Programs that
    /// create or delete objects do so too when they meet such an object.
    Repair(Repair),
    /// Remove a store: its objects in all racks, its tables and its name. Programs that use it get
    /// errors. Takes some seconds; repeat it after an error or a kill.
    RemoveStore(RemoveStore),
}

/// Which store, and from where.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct WhichStore {
    /// Name of the store.
    #[arg(long, value_name = "NAME", default_value = "objects")]
    store: String,
    /// Rack of this host through which the store is used [default: the first one].
    #[arg(long, value_name = "RACK")]
    rack: Option<u16>,
    #[command(flatten)]
    which: WhichPool,
}

#[derive(Clone, Debug, clap::Args)]
struct Ls {
    /// Only ids that begin with these bytes, written as `ls` shows them.
    #[arg(default_value = "", hide_default_value = true)]
    prefix: Bytes,
    #[command(flatten)]
    shown: Shown,
}

#[derive(Clone, Debug, clap::Args)]
struct Stat {
    /// Id of the object, written as `ls` shows it.
    id: Id,
    #[command(flatten)]
    shown: Shown,
}

#[derive(Clone, Debug, clap::Args)]
struct Shown {
    #[command(flatten)]
    which: WhichStore,
    /// Print JSON. docs/design/seeing.md describes the format.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, clap::Args)]
struct Get {
    /// Id of the object, written as `ls` shows it.
    id: Id,
    /// File to create; - is standard output.
    #[arg(default_value = "-")]
    file: PathBuf,
    #[command(flatten)]
    which: WhichStore,
}

#[derive(Clone, Debug, clap::Args)]
struct Put {
    /// Id of the object: printable characters, \xNN for any other byte, \\ for a backslash.
    id: Id,
    /// File to read; - is standard input, which is collected in memory first.
    file: PathBuf,
    #[command(flatten)]
    which: WhichStore,
}

#[derive(Clone, Debug, clap::Args)]
struct Rm {
    /// Ids of the objects, written as `ls` shows them.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<Id>,
    #[command(flatten)]
    which: WhichStore,
}

#[derive(Clone, Debug, clap::Args)]
struct Evict {
    /// Bytes to free, such as 64M or 1G.
    bytes: ByteSize,
    #[command(flatten)]
    which: WhichStore,
}

#[derive(Clone, Debug, clap::Args)]
struct Repair {
    #[command(flatten)]
    which: WhichStore,
}

#[derive(Clone, Debug, clap::Args)]
struct RemoveStore {
    /// Name of the store.
    name: String,
    /// Rack of this host through which the store is removed [default: the first one].
    #[arg(long, value_name = "RACK")]
    rack: Option<u16>,
    #[command(flatten)]
    which: WhichPool,
}

/// An id as `ls` shows it.
pub(super) fn printable_id(id: Vec<u8>) -> String {
    Bytes(id).to_string()
}

/// Runs the chosen action.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    match &options.action {
        Action::Ls(Ls { prefix, shown }) => list(prefix, shown),
        Action::Stat(Stat { id, shown }) => stat(id, shown),
        Action::Explain(Stat { id, shown: Shown { which, json } }) => {
            explain::run(id, which, *json)
        }
        Action::Top(options) => top::run(options),
        Action::Get(Get { id, file, which }) => get(id, file, which),
        Action::Put(Put { id, file, which }) => contents::put(&which.open_or_create()?, id, file),
        Action::Rm(Rm { ids, which }) => remove(ids, which),
        Action::Evict(Evict { bytes, which }) => evict(*bytes, which),
        Action::Options(settings) => settings::run(settings),
        Action::Repair(Repair { which }) => repair(which),
        Action::RemoveStore(RemoveStore { name, rack, which }) => remove_store(name, *rack, which),
    }
}

impl WhichStore {
    /// Opens the store.
    pub(super) fn open(&self) -> anyhow::Result<Store> {
        Store::open(self.pool()?, &self.store)?.with_context(|| {
            format!(
                "the pool has no object store '{}': `rackpool root ls` lists all roots, `rackpool \
                 objects put` creates a store",
                printable(&self.store)
            )
        })
    }

    /// Opens the store, or creates an empty one.
    fn open_or_create(&self) -> anyhow::Result<Store> {
        Ok(Store::open_or_create(self.pool()?, &self.store)?)
    }

    fn pool(&self) -> anyhow::Result<Arc<Pool>> {
        pool_of(&self.store, self.rack, &self.which)
    }

    /// The error for ids of which there is no object.
    pub(super) fn missing(&self, ids: &[&Id]) -> anyhow::Error {
        let ids: Vec<String> = ids.iter().map(|id| format!("'{id}'")).collect();
        let ids = ids.join(", ");
        let store = printable(&self.store);
        anyhow::anyhow!(
            "the store '{store}' has no object {ids}: `rackpool objects ls` lists its objects"
        )
    }
}

/// Opens the pool for a store, through a rack of this host.
fn pool_of(store: &str, rack: Option<u16>, which: &WhichPool) -> anyhow::Result<Arc<Pool>> {
    check_name(store).map_err(UsageError::new)?;
    let status = which.server()?.status()?;
    match rack {
        Some(rack) => open_pool_in(&status, RackId(rack)),
        None => open_pool(&status),
    }
}

fn list(prefix: &Bytes, Shown { which, json }: &Shown) -> anyhow::Result<()> {
    let objects = which.open()?.list(&prefix.0)?;
    if *json {
        outln!("{:#}", json::list(&which.store, &objects))?;
    } else if objects.is_empty() {
        let with_prefix = if prefix.0.is_empty() { "" } else { " with this prefix" };
        outln!("the store '{}' has no objects{with_prefix}", printable(&which.store))?;
    } else {
        text::list(&objects, now_ms())?;
    }
    Ok(())
}

fn stat(id: &Id, Shown { which, json }: &Shown) -> anyhow::Result<()> {
    let found = which.open()?.stat(&id.0.0)?.ok_or_else(|| which.missing(&[id]))?;
    if *json {
        outln!("{:#}", json::stat(&found))?;
        return Ok(());
    }
    text::stat(&found, now_ms())
}

fn get(id: &Id, file: &Path, which: &WhichStore) -> anyhow::Result<()> {
    let view = which.open()?.get(&id.0.0)?.ok_or_else(|| which.missing(&[id]))?;
    view.verify()?;
    contents::get(&view, file)
}

fn remove(ids: &[Id], which: &WhichStore) -> anyhow::Result<()> {
    let store = which.open()?;
    let mut missing = Vec::new();
    for id in ids {
        let is_removed = store.delete(&id.0.0);
        if is_removed.with_context(|| format!("the object '{id}' is not removed"))? {
            outln!("removed the object '{id}'")?;
        } else {
            missing.push(id);
        }
    }
    if !missing.is_empty() {
        bail!(which.missing(&missing));
    }
    Ok(())
}

fn repair(which: &WhichStore) -> anyhow::Result<()> {
    let lost = which.open()?.repair()?;
    let store = printable(&which.store);
    match lost {
        0 => outln!("the store '{store}' has no lost entries")?,
        lost => {
            let lost = counted(lost, "lost entry", "lost entries");
            outln!("removed {lost} of the store '{store}': lost objects count as absent now")?;
        }
    }
    Ok(())
}

fn remove_store(name: &str, rack: Option<u16>, which: &WhichPool) -> anyhow::Result<()> {
    let shown = printable(name);
    let is_removed = Store::remove(pool_of(name, rack, which)?, name);
    if !is_removed.with_context(|| format!("the store '{shown}' is not removed completely"))? {
        bail!("the pool has no object store '{shown}': `rackpool root ls` lists all roots");
    }
    outln!("removed the store '{shown}'")?;
    Ok(())
}

fn evict(wanted: ByteSize, which: &WhichStore) -> anyhow::Result<()> {
    let store = which.open()?;
    let evicted = ByteSize(store.evict(wanted.0)?);
    outln!(
        "evicted {evicted} of the store '{}' in {}",
        printable(&which.store),
        store.pool().rack()
    )?;
    if evicted.0 < wanted.0 {
        bail!("nothing else can be evicted: programs use what is left in this rack");
    }
    Ok(())
}
