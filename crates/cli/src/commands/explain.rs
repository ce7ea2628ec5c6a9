//! `rackpool explain`: a page's home, its former homes, and why it moved or stayed.

mod history;
mod json;

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, bail};
use rackpool_admin::{MemberReach, own_addresses, page_history, reach};
use rackpool_model::{GlobalAddr, PageId, PageSize, RackId};
use rackpool_output::clock::utc_millis;
use rackpool_output::{UsageError, chain, outln, print};
use rackpool_shm::directory::RackDirectory;
use rackpool_wire::history::PageHistory;
use rackpool_wire::metadata::{DirectoryEntry, PoolStatus};

use crate::pool_arguments::WhichPool;
use history::{degrees, history, is_allocated, line};

/// Which page.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Page number, or an address in the page, like 0x640040.
    #[arg(value_name = "PAGE|ADDRESS")]
    pub(crate) what: What,
    #[command(flatten)]
    which: WhichPool,
    /// Print JSON. docs/design/seeing.md describes the format.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A page, or an address in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The page itself.
    Page(PageId),
    /// Somewhere in it.
    Address(GlobalAddr),
}

impl FromStr for What {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let help = "give a page's number like 42, or an address like 0x640040";
        match text.strip_prefix("0x") {
            Some(digits) => {
                let raw = u64::from_str_radix(digits, 16).map_err(|_| help)?;
                Ok(Self::Address(GlobalAddr::from_raw(raw)))
            }
            None => text.parse().map(PageId).map(Self::Page).map_err(|_| help.into()),
        }
    }
}

/// Prints a page's history.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let server = options.which.server()?;
    let pool = server.status()?;
    let page = match options.what {
        What::Page(page) => page,
        What::Address(addr) => {
            let size = PageSize::from_bytes(pool.page_bytes).context("the pool has no racks")?;
            addr.page(size).ok_or_else(|| UsageError::new(format!("{addr} is not an address in the pool: give a page number or an address like 0x640040")))?
        }
    };
    let Some(entry) = server.explain(page)? else {
        bail!("the pool has no {page}: check the number, or the address that you gave")
    };
    let mut racks = Vec::new();
    let mut silent = Vec::new();
    let own = own_addresses();
    for member in &pool.members {
        match reach(&pool, member, &own) {
            MemberReach::Here => match page_history(&member.control_path, page) {
                Ok(history) => racks.push((member.rack, history)),
                Err(error) => silent.push((member.rack, chain(error.as_ref()))),
            },
            MemberReach::Elsewhere => {
                silent.push((member.rack, "on another host: ask there".into()))
            }
            MemberReach::Down => silent.push((member.rack, "its lease has expired".into())),
            MemberReach::Left => silent.push((member.rack, "it has left".into())),
        }
    }
    if options.json {
        let shape = json::explain(&pool, &entry, &racks, &silent);
        outln!("{shape:#}")?;
        return Ok(());
    }
    let beside = entry.home.map(|home| beside(&pool, home, &own)).unwrap_or_default();
    print(format_args!("{}", tell(&pool, &entry, &beside, &racks)))?;
    for (rack, why) in silent {
        outln!("  {rack:<8} not asked: {why}")?;
    }
    Ok(())
}

/// The racks that have their memory in common with `home`, as its folder on this host says.
fn beside(pool: &PoolStatus, home: RackId, own: &[IpAddr]) -> Vec<RackId> {
    let member = pool.members.iter().find(|member| member.rack == home);
    let member = member.filter(|member| reach(pool, member, own) == MemberReach::Here);
    let socket = member.map(|member| Path::new(&member.control_path));
    let folder = socket.and_then(Path::parent).map(RackDirectory::at);
    folder.map(|folder| folder.siblings(home)).unwrap_or_default()
}

fn tell(
    pool: &PoolStatus,
    entry: &DirectoryEntry,
    beside: &[RackId],
    racks: &[(RackId, PageHistory)],
) -> String {
    let mut text = format!("{} of {} B\n", entry.page, pool.page_bytes);
    let _ = writeln!(text, "  born in   {}", entry.born);
    let is_free = is_allocated(entry, racks) == Some(false);
    let lives = match (entry.home, entry.moved) {
        (Some(home), _) if is_free => {
            format!("nowhere: nothing is allocated in it; its frame in {home} is free")
        }
        (Some(home), None) => format!("{home}, it never moved"),
        (Some(home), Some(last)) => {
            format!("{home}, where swap {:x} brought it (epoch {})", last.swap.0, last.epoch.raw())
        }
        (None, _) => "nowhere: it is lost with its rack's memory".into(),
    };
    let _ = writeln!(text, "  lives in  {lives}");
    if !beside.is_empty() {
        let numbers: Vec<String> = beside.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "  local to  {} as well: they are one rack", numbers.join(", "));
    }
    if let Some(lock) = entry.locked {
        let state = if lock.committing { "about to be committed" } else { "under way" };
        let _ = writeln!(
            text,
            "  now       {} gives {} for {}: swap {:x} is {state}",
            lock.requester, lock.offered, lock.wanted, lock.swap.0
        );
    }
    if !entry.waiting.is_empty() {
        let waiting: Vec<String> = entry.waiting.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "  wanted by {}", waiting.join(", "));
    }
    text.push_str("\nhotness now\n");
    for (rack, history) in racks {
        let _ = writeln!(text, "  {:<8} {}", rack.to_string(), heat(history));
    }
    let notes = history(racks);
    text.push_str("\nhistory, as far as the daemons remember (UTC)\n");
    if notes.is_empty() {
        text.push_str("  no other rack has requested it, and it has not moved\n");
    }
    for (rack, note) in notes {
        let (time, rack) = (utc_millis(note.unix_ms), rack.to_string());
        let _ = writeln!(text, "  {time}  {rack:<8} {}", line(&note));
    }
    text
}

fn heat(history: &PageHistory) -> String {
    let heat = &history.heat;
    let mut text = format!("{:>8}", degrees(heat.milli));
    let hot = match (heat.hot, heat.read_hot) {
        (_, true) => "read-hot",
        (true, false) => "hot",
        (false, _) => "cold",
    };
    let _ = write!(
        text,
        "  {hot} (hot above {}), {} reads, {} writes",
        degrees(history.hot_milli),
        heat.reads,
        heat.writes
    );
    if heat.at_home {
        text.push_str("; its home");
    }
    if history.rests {
        text.push_str("; it rests");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_numbers_and_addresses_are_hexadecimal() {
        assert_eq!("42".parse(), Ok(What::Page(PageId(42))));
        assert_eq!("0x640040".parse(), Ok(What::Address(GlobalAddr::from_raw(0x64_0040))));
        for wrong in ["", "0x", "page", "-1", "4294967296", "0x1ffffffffffffffff"] {
            assert!(wrong.parse::<What>().unwrap_err().contains("0x640040"), "{wrong}");
        }
    }
}
