//! Requests between racks compared with the fabric's own operations of the same size, and the mode
//! chosen by measurement compared with the best of the three.

pub(crate) mod end;
mod raw;

use anyhow::Context;
use rackpool_rrpc::Mode;

use crate::measure::{in_turn, median, paired};
use crate::table::{Case, Table};
use end::{Caller, Provider};

/// Sizes at which requests are compared with the fabric (bytes).
const SIZES: [u32; 3] = [64, 4 << 10, 256 << 10];
/// Sizes at which the choice is compared with every mode (bytes).
const CHOICES: [u32; 11] =
    [8, 64, 512, 2 << 10, 8 << 10, 32 << 10, 60 << 10, 128 << 10, 512 << 10, 1 << 20, 4 << 20];
/// Target duration of a round (ns).
const ROUND_NS: f64 = 2e7;
/// Target duration of all blocks of a paired measurement (ns).
const PAIRED_NS: f64 = 8e9;
/// Rounds in which the choice and the modes take turns.
const TURNS: usize = 15;

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    for provider in Provider::ALL {
        over(table, provider)?;
    }
    Ok(())
}

fn over(table: &mut Table, provider: Provider) -> anyhow::Result<()> {
    let mut caller = Caller::start(provider)?;
    let title = format!("requests between racks over {}, a core each", caller.description());
    table.section(&title);
    println!("  {}", caller.thresholds()?);
    transfers(table, &mut caller);
    messages(table, &mut caller);
    modes(table, &mut caller);
    choice(table, &mut caller)?;
    caller.stop()
}

/// Operations in a round, from the duration of one (ns).
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some hundred")]
fn count(each: f64) -> usize {
    (ROUND_NS / each).clamp(4.0, 2000.0) as usize
}

fn size(len: u32) -> String {
    rackpool_model::ByteSize(len.into()).to_string()
}

/// One-sided operations on a known place, posted through `Rrpc` and directly.
fn transfers(table: &mut Table, caller: &mut Caller) {
    for is_read in [true, false] {
        let cases = SIZES.map(|len| {
            let count = count(caller.transfers(is_read, len, 4));
            let caller = std::cell::RefCell::new(&mut *caller);
            let times = in_turn(
                || caller.borrow_mut().transfers(is_read, len, count),
                || caller.borrow_mut().raw_transfers(is_read, len, count),
            );
            Case { name: size(len), figure: times.ratio, detail: micros(&times) }
        });
        let what = if is_read { "read" } else { "write" };
        table.largest_at_most(&format!("{what} against a raw one"), &cases, 1.15, "x");
    }
}

/// Requests whose answers come in a message, compared with that message and a bare request message.
/// The limit is a difference that is a hundredth of either time over TCP, so the two alternate
/// operation by operation.
fn messages(table: &mut Table, caller: &mut Caller) {
    let mut cases = Vec::new();
    for len in SIZES.into_iter().filter(|len| *len as usize <= rackpool_rrpc::MAX_INLINE) {
        let pure = Some(Mode::Pure);
        let blocks = (PAIRED_NS / (4.0 * caller.calls(pure, len, 100))).clamp(1e3, 1e5);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let blocks = blocks as usize;
        let caller = std::cell::RefCell::new(&mut *caller);
        let times = paired(
            blocks,
            || caller.borrow_mut().calls(pure, len, 1),
            || caller.borrow_mut().raw_calls(Mode::Pure, len, 1),
        );
        let (ours, peer, noise) = (times.ours / 1e3, times.peer / 1e3, times.noise / 1e3);
        let detail = format!("{ours:.2} us against {peer:.2} us, noise {noise:.2} us");
        cases.push(Case { name: size(len), figure: times.difference / 1e3, detail });
    }
    table.largest_at_most("pure RPC above two raw messages", &cases, 1.0, "us");
}

/// The other modes, compared with the fabric operations of which each consists.
fn modes(table: &mut Table, caller: &mut Caller) {
    for (mode, what) in [(Mode::ThenOneSided, "RPC then read"), (Mode::ZeroCopy, "zero-copy RPC")] {
        let cases = SIZES.map(|len| {
            let count = count(caller.calls(Some(mode), len, 4));
            let caller = std::cell::RefCell::new(&mut *caller);
            let times = in_turn(
                || caller.borrow_mut().calls(Some(mode), len, count),
                || caller.borrow_mut().raw_calls(mode, len, count),
            );
            Case { name: size(len), figure: times.ratio, detail: micros(&times) }
        });
        table.largest_at_most(&format!("{what} against its raw operations"), &cases, 1.15, "x");
    }
}

fn micros(times: &crate::measure::Pair) -> String {
    format!("{:.2} us against {:.2} us", times.ours / 1e3, times.peer / 1e3)
}

/// The mode that the thresholds choose, compared with each mode. The choice is one of the modes, so
/// the time of that mode is compared with the best: two measurements of one mode in a turn differ
/// by up to a tenth.
fn choice(table: &mut Table, caller: &mut Caller) -> anyhow::Result<()> {
    let mut cases = Vec::new();
    for len in CHOICES {
        let modes: Vec<Mode> = Mode::ALL
            .into_iter()
            .filter(|mode| *mode != Mode::Pure || len as usize <= rackpool_rrpc::MAX_INLINE)
            .collect();
        let count = count(caller.calls(None, len, 4));
        let chosen = caller.chosen(len)?;
        let mut unforced = Vec::new();
        let mut fixed = vec![Vec::new(); modes.len()];
        for turn in 0..=TURNS {
            let time = caller.calls(None, len, count);
            let times: Vec<f64> =
                modes.iter().map(|mode| caller.calls(Some(*mode), len, count)).collect();
            // The first turn is a warm-up.
            if turn > 0 {
                unforced.push(time);
                fixed.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
            }
        }
        let medians: Vec<f64> = fixed.iter().map(|times| median(times.clone())).collect();
        let best = (0..modes.len()).min_by(|a, b| medians[*a].total_cmp(&medians[*b])).unwrap_or(0);
        let own = modes.iter().position(|mode| *mode == chosen).context("a mode for this size")?;
        let ratios = fixed[own].iter().zip(&fixed[best]).map(|(chosen, best)| chosen / best);
        let all: Vec<String> = modes
            .iter()
            .zip(&medians)
            .map(|(mode, time)| format!("{mode:?} {:.2}", time / 1e3))
            .collect();
        let detail =
            format!("{chosen:?}, unforced {:.2} us; {}", median(unforced) / 1e3, all.join(", "));
        cases.push(Case { name: size(len), figure: median(ratios.collect()), detail });
    }
    table.largest_at_most("the chosen mode against the best", &cases, 1.05, "x");
    Ok(())
}
