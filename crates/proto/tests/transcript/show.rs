use std::fmt::Write;

use rackpool_model::{GlobalAddr, PageRange};
use rackpool_proto::directory::Moved;
use rackpool_proto::metadata::{Action, Change, OperatorEvent};
use rackpool_wire::metadata::{DirectoryEntry, LastMove, Member, MetadataReply, PageLock};
use rackpool_wire::swap::FromServer;

/// Prints one action in the format of the transcripts.
pub(super) fn action(out: &mut String, action: &Action) {
    match action {
        Action::Persist { batch, changes } => {
            writeln!(out, "persist {}", batch.0).unwrap();
            for change in changes {
                // Omitted, since every batch has one.
                if !matches!(change, Change::Advanced { .. }) {
                    writeln!(out, "  {}", change_line(change)).unwrap();
                }
            }
        }
        Action::Reply { to, tag, reply } => {
            write!(out, "reply {tag}").unwrap();
            if to.0 != 1 {
                write!(out, " on {}", to.0).unwrap();
            }
            writeln!(out, ": {}", reply_line(reply)).unwrap();
            if let MetadataReply::Renewed { members, .. } = reply {
                show_members(out, members);
            }
            if let MetadataReply::Status(status) = reply {
                show_members(out, &status.members);
                for (name, at) in &status.roots {
                    writeln!(out, "  {name} = {}", addr(Some(*at))).unwrap();
                }
            }
        }
        Action::Push { to, reply } => {
            writeln!(out, "push on {}: {}", to.0, reply_line(reply)).unwrap();
            if let MetadataReply::Members { members, .. } = reply {
                show_members(out, members);
            }
        }
        Action::Report(event) => writeln!(out, "report: {}", event_line(event)).unwrap(),
    }
}

fn change_line(change: &Change) -> String {
    match change {
        Change::Started { boot, .. } => format!("started for the {boot}. time"),
        Change::Advanced { commit } => format!("commit {commit}"),
        Change::PoolFormatted { page_size } => format!("pool formatted with pages of {page_size}"),
        Change::RunHandedOut(run) => {
            format!("pages {} handed out to memory {}", pages(run.pages), run.memory.0)
        }
        Change::RackRegistered { rack, record } => format!(
            "{rack} registered: memory {} incarnation {} {} {}",
            record.memory.0, record.incarnation.0, record.control_path, record.fabric_address
        ),
        Change::RackLeft { rack } => format!("{rack} left"),
        Change::PageMoved(Moved { page, home, memory, epoch, swap }) => format!(
            "page {} moved to {home}, memory {}, epoch {}, by swap {}",
            page.0,
            memory.0,
            epoch.raw(),
            version(swap.0)
        ),
        Change::RootPut { name, addr: at } => format!("{name} = {}", addr(Some(*at))),
        Change::RootRemoved { name } => format!("{name} removed"),
    }
}

fn reply_line(reply: &MetadataReply) -> String {
    match reply {
        MetadataReply::Registered { pages: run, lease_ms, .. } => {
            format!("registered, pages {}, lease {lease_ms} ms", pages(*run))
        }
        MetadataReply::Renewed { version: v, members, .. } => {
            format!("renewed, version {}, {} members", version(*v), members.len())
        }
        MetadataReply::Left => "left".into(),
        MetadataReply::Located { pages: run, home } => format!("{home}, pages {}", pages(*run)),
        MetadataReply::NoSuchPage => "no such page".into(),
        MetadataReply::PageLost => "page lost".into(),
        MetadataReply::Root { addr: at, changed } => {
            format!("{}{}", addr(*at), if *changed { ", changed" } else { "" })
        }
        MetadataReply::Status(status) => format!(
            "status, pages of {} B, lease {} ms, version {}, {} pages lost",
            status.page_bytes,
            status.lease_ms,
            version(status.version),
            status.lost_pages
        ),
        MetadataReply::Refused(refusal) => format!("refused: {refusal}"),
        MetadataReply::Swap { message, .. } => swap_line(message),
        MetadataReply::Explained(entry) => entry_line(entry),
        MetadataReply::Members { version: v, members } => {
            format!("members, version {}, {} of them", version(*v), members.len())
        }
    }
}

fn swap_line(message: &FromServer) -> String {
    match message {
        FromServer::Granted { swap, nonce, home } => {
            format!("begin swap {}, nonce {nonce}, with {home}", version(swap.0))
        }
        FromServer::Refused { nonce, reason } => format!("want {nonce} refused: {reason:?}"),
        FromServer::Decision { swap, committed } => {
            let committed = if *committed { "committed" } else { "given up" };
            format!("swap {} {committed}", version(swap.0))
        }
    }
}

fn entry_line(entry: &DirectoryEntry) -> String {
    let DirectoryEntry { page, born, memory, home, moved, locked, waiting } = entry;
    let home = home.map_or("lost".into(), |home| format!("at {home}"));
    let mut line = format!("page {} of {born}: {home}, memory {}", page.0, memory.0);
    if let Some(LastMove { swap, epoch }) = moved {
        write!(line, " by swap {} with epoch {}", version(swap.0), epoch.raw()).unwrap();
    }
    if let Some(PageLock { swap, requester, wanted, offered, committing }) = locked {
        let swap = version(swap.0);
        write!(line, ", in swap {swap} of {requester}: {} for {}", wanted.0, offered.0).unwrap();
        line.push_str(if *committing { ", committing" } else { "" });
    }
    for rack in waiting {
        write!(line, ", {rack} waits").unwrap();
    }
    line
}

fn event_line(event: &OperatorEvent) -> String {
    match event {
        OperatorEvent::Joined { rack, incarnation, pages: run, lost } => {
            let lost = if *lost > 0 { format!(", {lost} pages lost") } else { String::new() };
            format!("{rack} joined, incarnation {}, pages {}{lost}", incarnation.0, pages(*run))
        }
        OperatorEvent::Left { rack } => format!("{rack} left"),
        OperatorEvent::Expired { rack } => format!("{rack} expired"),
    }
}

fn show_members(out: &mut String, members: &[Member]) {
    for member in members {
        let alive = if member.alive { "alive" } else { "dead" };
        writeln!(
            out,
            "  {} {alive}: memory {} incarnation {} pages {} free {} {} {}",
            member.rack,
            member.memory.0,
            member.incarnation.0,
            pages(member.pages),
            member.free_frames,
            member.control_path,
            member.fabric_address
        )
        .unwrap();
    }
}

fn pages(run: PageRange) -> String {
    format!("{}..={}", run.first.0, u64::from(run.first.0) + u64::from(run.count) - 1)
}

fn addr(addr: Option<GlobalAddr>) -> String {
    addr.map_or_else(|| "none".into(), |addr| addr.raw().to_string())
}

fn version(version: u64) -> String {
    format!("{}.{}", version >> 32, version & u64::from(u32::MAX))
}
