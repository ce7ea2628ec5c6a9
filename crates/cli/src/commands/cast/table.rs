use std::collections::BTreeMap;
use std::fmt::Write;

use rackpool_output::Style;
use rackpool_output::numbers::counted;
use rackpool_proto::multicast::schedule::{Shape, Transfer};

/// The most steps and racks of a plan that is shown transfer by transfer.
const MAX_STEPS: u64 = 24;
const MAX_RACKS: u16 = 32;

/// The plan as text: every transfer of a small one, and a line for each rack.
pub(super) fn render(shape: &Shape, style: Style) -> String {
    let mut out = String::new();
    let transfers = shape.transfers();
    let (racks, blocks, steps) = (shape.members(), shape.blocks(), shape.steps());
    let title = format!(
        "{}, {}, {}",
        counted(racks.into(), "rack", "racks"),
        counted(blocks.into(), "block", "blocks"),
        counted(steps, "step", "steps")
    );
    add(&mut out, &style.bold(&title));
    if steps <= MAX_STEPS && racks <= MAX_RACKS {
        add(&mut out, "");
        add(&mut out, "Each cell is a block and the rack that it is read from.");
        by_step(&mut out, shape, &transfers, style);
    }
    add(&mut out, "");
    summary(&mut out, shape, &transfers, style);
    out
}

fn add(out: &mut String, line: &str) {
    out.push_str(line.trim_end());
    out.push('\n');
}

/// A line for each rack, a column for each step.
fn by_step(out: &mut String, shape: &Shape, transfers: &[Transfer], style: Style) {
    let cells: BTreeMap<_, _> = transfers
        .iter()
        .map(|one| ((one.to, one.step), format!("{}<{}", one.block.0, one.from)))
        .collect();
    let steps = 0..shape.steps();
    let width = cells.values().map(String::len).max().unwrap_or(0).max(2);
    let mut head = String::from("step   ");
    for step in steps.clone() {
        let _ = write!(head, "  {step:>width$}");
    }
    add(out, &style.dim(&head));
    for rack in 1..shape.members() {
        let mut line = format!("rack {rack:<2}");
        for step in steps.clone() {
            let cell = cells.get(&(rack, step)).map_or(".", String::as_str);
            let _ = write!(line, "  {cell:>width$}");
        }
        add(out, &line);
    }
}

/// What each rack has to do; of a large group, only the extremes.
fn summary(out: &mut String, shape: &Shape, transfers: &[Transfer], style: Style) {
    let racks = Work::of_racks(shape.members(), transfers);
    if shape.members() <= MAX_RACKS {
        add(out, &style.dim("rack   first step  last step  reads  is read"));
        for (rack, work) in racks.iter().enumerate() {
            let step = |step: Option<u64>| step.map_or_else(|| "-".into(), |step| step.to_string());
            add(
                out,
                &format!(
                    "{rack:<4}  {:>11}  {:>9}  {:>5}  {:>7}",
                    step(work.first),
                    step(work.last),
                    work.reads,
                    work.is_read
                ),
            );
        }
        return;
    }
    let most = |value: fn(&Work) -> Option<u64>| racks.iter().filter_map(value).max().unwrap_or(0);
    let root = racks.first().map_or(0, |root| root.is_read);
    let others = racks.iter().skip(1).map(|work| work.is_read).max().unwrap_or(0);
    add(out, &format!("the last rack gets its first block in step {}", most(|work| work.first)));
    add(out, &format!("the last rack gets its last block in step {}", most(|work| work.last)));
    let blocks = |count| counted(count, "block", "blocks");
    add(out, &format!("read from the root: {}", blocks(root)));
    add(out, &format!("read from any other rack: at most {}", blocks(others)));
}

/// What a rack has to do.
#[derive(Debug, Default)]
struct Work {
    first: Option<u64>,
    last: Option<u64>,
    reads: u64,
    is_read: u64,
}

impl Work {
    /// The work of each rack, by rank.
    fn of_racks(racks: u16, transfers: &[Transfer]) -> Vec<Self> {
        let mut all: Vec<_> = (0..racks).map(|_| Self::default()).collect();
        for one in transfers {
            if let Some(source) = all.get_mut(usize::from(one.from)) {
                source.is_read += 1;
            }
            if let Some(reader) = all.get_mut(usize::from(one.to)) {
                reader.reads += 1;
                reader.first.get_or_insert(one.step);
                reader.last = Some(one.step);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use rackpool_proto::multicast::schedule::Schedule;

    use super::*;

    #[test]
    fn a_small_plan_is_shown_transfer_by_transfer() {
        let shape = Shape::new(Schedule::BinomialPipeline, 4, 3);
        let expected = "\
4 racks, 3 blocks, 4 steps

Each cell is a block and the rack that it is read from.
step       0    1    2    3
rack 1   0<0    .  2<0  1<3
rack 2     .  1<0  0<3  2<0
rack 3     .  0<1  1<2  2<1

rack   first step  last step  reads  is read
0               -          -      0        4
1               0          3      3        2
2               1          3      3        1
3               1          3      3        2
";
        assert_eq!(render(&shape, Style::Plain), expected);
    }

    #[test]
    fn a_large_plan_is_summed_up() {
        let shape = Shape::new(Schedule::BinomialPipeline, 512, 256);
        let expected = "\
512 racks, 256 blocks, 264 steps

the last rack gets its first block in step 8
the last rack gets its last block in step 263
read from the root: 264 blocks
read from any other rack: at most 262 blocks
";
        assert_eq!(render(&shape, Style::Plain), expected);
    }
}
