//! Measurements beside the limits that the project sets itself. Fails when a limit is missed or
//! could not be measured.

use std::process::ExitCode;

use anyhow::Context;
use rackpool_benches::page::Page;
use rackpool_benches::table::Table;
use rackpool_benches::{
    alloc, blocks, cast_hosts, casts, clients, corun, cosmos, fuse, groups, idle, kills, kv,
    line_cache, local, locks, mixture, names, object_count, object_tcp, objects, page, pauses,
    peers, plasma, rack_daemons, recovery, remote, rings, rrpc, service, sharing, steps, swap, tcp,
};

type Section = fn(&mut Table) -> anyhow::Result<()>;

const SECTIONS: [(&str, Page, Section); 32] = [
    ("local", Page::Rack, local::run),
    ("alloc", Page::Rack, alloc::run),
    ("rings", Page::Rack, rings::run),
    ("peers", Page::Rack, peers::run),
    ("clients", Page::Rack, clients::run),
    ("corun", Page::Rack, corun::run),
    ("mixture", Page::Racks, mixture::run),
    ("line-locks", Page::Racks, locks::run),
    ("line-cache", Page::Racks, line_cache::run),
    ("kills", Page::Rack, kills::run),
    ("kv", Page::Rack, kv::run),
    ("service", Page::Rack, service::run),
    ("objects", Page::Rack, objects::run),
    ("object-count", Page::Rack, object_count::run),
    ("plasma", Page::Rack, plasma::run),
    ("object-tcp", Page::Objects, object_tcp::run),
    ("casts", Page::Objects, casts::run),
    ("blocks", Page::Objects, blocks::run),
    ("cast-hosts", Page::Objects, cast_hosts::run),
    ("cosmos", Page::Objects, cosmos::run),
    ("groups", Page::Objects, groups::run),
    ("remote", Page::Racks, remote::run),
    ("rack-daemons", Page::Racks, rack_daemons::run),
    ("tcp", Page::Racks, tcp::run),
    ("rrpc", Page::Racks, rrpc::run),
    ("swap", Page::Racks, swap::run),
    ("swap-polling", Page::Racks, swap::run_polling),
    ("swap-pauses", Page::Racks, pauses::run),
    ("sharing", Page::Racks, sharing::run),
    ("fuse", Page::Rack, fuse::run),
    ("recovery", Page::Rack, recovery::run),
    ("idle", Page::Rack, idle::run),
];

fn main() -> ExitCode {
    match run() {
        Ok((0, 0)) => ExitCode::SUCCESS,
        Ok((missed, unmeasured)) => {
            eprintln!("limits missed: {missed}; comparisons not made: {unmeasured}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("limits: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs what the arguments request; returns the number of missed limits and of comparisons that
/// could not be made.
fn run() -> anyhow::Result<(usize, usize)> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some(steps::ARGUMENT) => {
            let dir = arguments.next().context("the pool's folder")?;
            return steps::be_counted(dir.as_ref()).map(|()| (0, 0));
        }
        Some(clients::ARGUMENT) => return clients::be_client(arguments).map(|()| (0, 0)),
        Some(fuse::ARGUMENT) => return fuse::be_peer(arguments).map(|()| (0, 0)),
        Some(kills::ARGUMENT) => return kills::be_victim(arguments).map(|()| (0, 0)),
        Some(object_count::ARGUMENT) => {
            return object_count::be_creator(arguments).map(|()| (0, 0));
        }
        Some(corun::ARGUMENT) => return corun::be_co_runner(arguments).map(|()| (0, 0)),
        _ => {}
    }
    // Cargo passes `--bench`; names choose sections, several joined by `|`.
    let wanted = names::wanted(std::env::args().skip(1));
    names::check(&wanted, &SECTIONS.map(|(name, ..)| name))?;
    let mut table = Table::default();
    for (name, _, section) in SECTIONS {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| name.contains(wanted.as_str())) {
            continue;
        }
        table.benchmark(name);
        // Each section runs on a thread of its own, since sections bind their thread to cores.
        table = std::thread::spawn(move || section(&mut table).map(|()| table))
            .join()
            .map_err(|_| anyhow::anyhow!("the section {name} panicked"))??;
    }
    if let Some(folder) = std::env::var_os(page::VARIABLE) {
        let benchmarks = SECTIONS.map(|(name, page, _)| (name, page));
        let setting = page::Setting::here()?;
        for path in page::write(folder.as_ref(), &benchmarks, &table, &setting)? {
            println!("\nwritten to {}", path.display());
        }
    }
    Ok((table.missed(), table.unmeasured()))
}
