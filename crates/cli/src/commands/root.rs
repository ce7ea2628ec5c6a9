//! `rackpool root`: lists the names of a pool, and removes one.

use anyhow::bail;
use rackpool_admin::{MetadataServer, put_root};
use rackpool_model::{GlobalAddr, RootUpdate};
use rackpool_output::{UsageError, outln};
use rackpool_wire::bounds::check_name;
use rackpool_wire::metadata::PoolStatus;

use super::roots::{
    Content, Root, content_of, local_member, look_at_roots, open_pool, printable, roots_as_json,
};
use crate::pool_arguments::WhichPool;

/// What is done.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Action {
    /// List the named addresses, with the home of each page and the type of the object.
    Ls(Ls),
    /// Remove a name. The memory at its address stays allocated.
    Rm(Rm),
}

#[derive(Clone, Debug, clap::Args)]
struct Ls {
    #[command(flatten)]
    which: WhichPool,
    /// Print JSON. docs/design/seeing.md describes the format.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug, clap::Args)]
struct Rm {
    /// Name to remove.
    name: String,
    /// Remove the name even if it leads to a table or an object store, whose memory is then leaked:
    /// it stays allocated, and no name reaches it.
    #[arg(long)]
    keep_memory: bool,
    #[command(flatten)]
    which: WhichPool,
}

/// Lists or removes.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    match &options.action {
        Action::Ls(options) => list(options),
        Action::Rm(options) => remove(options),
    }
}

fn list(options: &Ls) -> anyhow::Result<()> {
    let server = options.which.server()?;
    let roots = look_at_roots(&server, &server.status()?)?;
    if options.json {
        outln!("{:#}", roots_as_json(&roots))?;
        return Ok(());
    }
    print_roots(&roots, "the pool has no roots")
}

/// Prints roots as a table, or `none` if there are none.
pub(super) fn print_roots(roots: &[Root], none: &str) -> anyhow::Result<()> {
    if roots.is_empty() {
        outln!("{none}")?;
        return Ok(());
    }
    let width = roots.iter().map(|root| printable(&root.name).chars().count()).max();
    let width = width.unwrap_or(0).clamp(4, 40);
    outln!("{:width$}  {:<14}  {:<8}  CONTENT", "NAME", "ADDRESS", "HOME")?;
    for Root { name, addr, page, content } in roots {
        let content = match content {
            Ok(content) => content.name().to_owned(),
            Err(why) => format!("unknown: {why}"),
        };
        let addr = addr.to_string();
        outln!("{:width$}  {addr:<14}  {page:<8}  {content}", printable(name))?;
    }
    Ok(())
}

fn remove(options: &Rm) -> anyhow::Result<()> {
    let name = &options.name;
    check_name(name).map_err(UsageError::new)?;
    let server = options.which.server()?;
    let pool = server.status()?;
    let addr = address_of(&pool, name)?;
    let content = || open_pool(&pool).ok().and_then(|own| content_of(&own, addr).ok());
    let command = match if options.keep_memory { None } else { content() } {
        Some(Content::Table) => Some(("a table", "table rm")),
        Some(Content::Store) => Some(("a store of objects", "objects remove-store")),
        Some(Content::Volume | Content::Other) | None => None,
    };
    if let Some((what, command)) = command {
        let name = printable(name);
        bail!(UsageError::new(format!(
            "the root '{name}' leads to {what}: remove it and its memory with `rackpool {command}`, or \
             only the name with --keep-memory"
        )));
    }
    remove_root(&server, &pool, name, addr)?;
    outln!("removed the root '{}'; what lies at {addr} stays in use", printable(name))?;
    Ok(())
}

/// Returns the address of a root.
pub(super) fn address_of(pool: &PoolStatus, name: &str) -> anyhow::Result<GlobalAddr> {
    match pool.roots.iter().find(|(known, _)| known == name) {
        Some((_, addr)) => Ok(*addr),
        None => {
            bail!("the pool has no root '{}': `rackpool root ls` lists all roots", printable(name))
        }
    }
}

/// Removes a root if it still has this address. Racks may do so and operators may not, so this goes
/// through a daemon of this host if there is one.
pub(super) fn remove_root(
    server: &MetadataServer,
    pool: &PoolStatus,
    name: &str,
    addr: GlobalAddr,
) -> anyhow::Result<()> {
    let RootUpdate { addr: now, changed: is_removed } = match local_member(pool) {
        Some(member) => put_root(&member.control_path, name, Some(addr), None)?,
        None => server.put_root(name, Some(addr), None)?,
    };
    let name = printable(name);
    match now {
        _ if is_removed => Ok(()),
        Some(now) => bail!(
            "the root '{name}' was changed from {addr} to {now} by another program meanwhile and is not \
             removed: check it (`rackpool root ls`) and repeat the command"
        ),
        None => bail!(
            "the root '{name}' was removed by another program meanwhile: there is nothing to do"
        ),
    }
}
