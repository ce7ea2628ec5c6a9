//! Figure 21: writes under locks of another rack's lines, with the line cache and without.

use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_report::figures::Figure;

use super::{Sizes, panel, series, statement};
use crate::cpu::{pin_process, pin_self};
use crate::line_cache::{LOCK, parts, times_without};
use crate::locks::cluster;

const SIZES: [usize; 8] = [8, 16, 64, 128, 256, 512, 1024, 4096];
/// The size up to which the paper uses its buffer.
const BUFFERED: usize = 256;

pub(super) fn measure(_: &Sizes) -> anyhow::Result<Figure> {
    let mut cluster = cluster()?;
    let dir = cluster.options().dir.clone();
    let open = |rack| Pool::open(ClientOptions::new(&dir, RackId(rack)));
    let (home, pool) = (open(0)?, open(1)?);
    pin_self(0)?;
    pin_process(cluster.daemon(RackId(1))?.id(), 1)?;
    let addr = home.alloc(LOCK as u64)?;
    home.write(addr, &[1; LOCK])?;
    let mut measured = Vec::new();
    for len in SIZES {
        measured.push(times_without(&pool, addr, LOCK, &parts(addr, len)?, len));
    }
    drop((home, pool));
    cluster.stop()?;
    let labels = SIZES.iter().map(ToString::to_string).collect();
    let mut rates = panel("writes", "Writes", ("bytes", "million writes/s"), labels);
    rates.series = vec![
        series("line cache (rackpool)", measured.iter().map(|pair| 1e3 / pair.ours)),
        series("without", measured.iter().map(|pair| 1e3 / pair.peer)),
    ];
    let buffered = SIZES.iter().zip(&measured).filter(|(len, _)| **len <= BUFFERED);
    let times: Vec<f64> = buffered.map(|(_, pair)| 1.0 / pair.ratio).collect();
    let (least, most) =
        times.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), time| (a.min(*time), b.max(*time)));
    let above = SIZES.iter().zip(&measured).filter(|(len, _)| **len > BUFFERED);
    let larger = above.map(|(_, pair)| 1.0 / pair.ratio).fold(f64::INFINITY, f64::min);
    Ok(Figure {
        id: "21".into(),
        title: "Writes under a lock".into(),
        setting:
            "A client locks 4 KiB of another rack, writes all of it in parts of one size, and \
                  unlocks; the line cache gathers the writes and sends them at the unlock."
                .into(),
        panels: vec![rates],
        statements: vec![
            statement(
                "up to 1.6 times the throughput",
                format!("up to {most:.1} times"),
                most >= 1.6,
                "Under a lock of 4 KiB little is gathered at these sizes.",
            ),
            statement(
                "at least as fast at all sizes",
                format!("at least {least:.1} times up to {BUFFERED} B, {larger:.2} above"),
                least.min(larger) >= 1.0,
                "A long write is as few messages without the cache, which then only copies it.",
            ),
        ],
        notes: Vec::new(),
    })
}
