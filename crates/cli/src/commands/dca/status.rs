//! `rackpool dca status`.

use rackpool_dca::WayMask;
use rackpool_dca::hardware::{Socket, State, leftover};
use rackpool_model::ByteSize;
use rackpool_output::outln;
use serde_json::json;

use super::machine::Machine;

/// What is shown.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    machine: Machine,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

type Ways = Result<Vec<(Socket, WayMask)>, String>;

/// Shows the machine's state.
///
/// # Errors
/// If nothing can be printed.
pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    let state = State::of(&options.machine.files());
    let ways: Ways =
        state.ways(&mut options.machine.registers()).map_err(|error| error.to_string());
    let is_left = leftover(&options.machine.note());
    if options.json {
        outln!("{:#}", as_json(&state, &ways, is_left))?;
        return Ok(());
    }
    let processor = state.processor.as_ref().map_or("unknown".into(), ToString::to_string);
    outln!("processor   {processor}")?;
    match &state.cache {
        Some(cache) => outln!(
            "cache       L{}, {}, {}",
            cache.level,
            ByteSize(cache.bytes),
            cache.ways.map_or("ways unknown".into(), |ways| format!("{ways} ways"))
        )?,
        None => outln!("cache       the kernel does not describe it")?,
    }
    match state.card_node {
        Some(node) => outln!("card        on NUMA node {node}")?,
        None => outln!("card        no RDMA card says its node")?,
    }
    match &ways {
        Ok(ways) => {
            for (socket, mask) in ways {
                outln!("devices     socket {}: {} ways ({:#x})", socket.id, mask.count(), mask.0)?;
            }
        }
        Err(reason) => outln!("devices     {reason}")?,
    }
    programs(&state, &ways)?;
    if is_left {
        outln!("warning     an earlier change was not undone: rackpool dca restore")?;
    }
    Ok(())
}

fn programs(state: &State, ways: &Ways) -> anyhow::Result<()> {
    let Some(resctrl) = &state.resctrl else {
        outln!("programs    resctrl is not mounted or has no L3: programs use all ways")?;
        return Ok(());
    };
    for group in &resctrl.groups {
        let name = if group.name.is_empty() { "all others" } else { &group.name };
        let masks: Vec<String> = group
            .masks
            .iter()
            .map(|(cache, mask)| format!("cache {cache}: {:#x}", mask.0))
            .collect();
        outln!("programs    {name}: {}", masks.join(", "))?;
    }
    let devices = devices(state, ways);
    for name in resctrl.overlapping(devices) {
        let name = if name.is_empty() { "all other programs" } else { name };
        outln!("note        {name} may use ways that devices write into ({:#x})", devices.0)?;
    }
    Ok(())
}

/// The ways of devices: from the registers, else as resctrl knows them.
fn devices(state: &State, ways: &Ways) -> WayMask {
    match ways {
        Ok(ways) => WayMask(ways.iter().fold(0, |all, (_, mask)| all | mask.0)),
        Err(_) => state.resctrl.as_ref().map_or(WayMask(0), |resctrl| resctrl.shareable),
    }
}

fn as_json(state: &State, ways: &Ways, is_left: bool) -> serde_json::Value {
    json!({
        "processor": state.processor.as_ref().map(ToString::to_string),
        "cache": state.cache.as_ref().map(|cache| json!({
            "level": cache.level, "bytes": cache.bytes, "ways": cache.ways,
        })),
        "card_node": state.card_node,
        "devices": match ways {
            Ok(ways) => ways.iter().map(|(socket, mask)| json!({
                "socket": socket.id, "cpu": socket.cpu, "mask": mask.0, "ways": mask.count(),
            })).collect(),
            Err(reason) => json!({ "reason": reason }),
        },
        "programs": state.resctrl.as_ref().map(|resctrl| resctrl.groups.iter().map(|group| json!({
            "group": group.name,
            "masks": group.masks.iter().map(|(_, mask)| mask.0).collect::<Vec<_>>(),
        })).collect::<Vec<_>>()),
        "overlapping": state.resctrl.as_ref()
            .map(|resctrl| resctrl.overlapping(devices(state, ways))),
        "left_over": is_left,
    })
}
