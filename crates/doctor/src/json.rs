//! The report as JSON. Names end with their unit.

use rackpool_shm::host::DeviceWays;
use serde_json::{Value, json};

use super::advice::Choice;
use super::facts::Facts;
use super::measure::{Measured, Measurements};
use super::report::Report;
use super::verdict::Verdict;

impl Report {
    /// Returns the report as JSON.
    ///
    /// # Errors
    /// If a value can't be written as JSON.
    pub fn to_json(&self) -> serde_json::Result<String> {
        of(self)
    }
}

/// Returns the whole report.
fn of(report: &Report) -> serde_json::Result<String> {
    let racks: Vec<Value> = report
        .racks
        .iter()
        .map(|rack| match &rack.state {
            Ok(state) => json!({
                "rack": rack.rack, "siblings": rack.siblings, "memory": state.memory,
                "placement": state.placement, "fabric": state.fabric,
                "memory_bytes": state.memory_bytes,
                "kernel_page_bytes": state.kernel_page_bytes,
                "sampled_pages": state.nodes.iter()
                    .map(|(node, pages)| json!({ "node": node, "pages": pages }))
                    .collect::<Vec<_>>(),
                "in_flight_limit_bytes": state.in_flight_limit,
                "in_flight_peak_bytes": state.in_flight_peak,
            }),
            Err(reason) => {
                json!({ "rack": rack.rack, "siblings": rack.siblings, "reason": reason })
            }
        })
        .collect();
    let value = json!({
        "facts": facts(&report.facts),
        "measured": report.measurements.as_ref().map(measurements),
        "racks": racks,
        "verdict": verdict(&report.verdict),
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

fn facts(facts: &Facts) -> Value {
    json!({
        "kernel": facts.kernel,
        "processor": facts.processor,
        "cpus": facts.cpus,
        "usable_cpus": facts.usable_cpus,
        "last_level_cache": facts.cache.as_ref().map(|cache| json!({
            "level": cache.level,
            "bytes": cache.bytes,
            "ways": cache.ways,
            "shared_by": cache.shared_by,
        })),
        "io_ways": match &facts.device_ways {
            Ok(DeviceWays { shared, all }) => json!({ "shared": shared, "all": all }),
            Err(reason) => json!({ "reason": reason }),
        },
        "membarrier": facts.membarrier,
        "fuse": facts.fuse,
        "memlock_bytes": match &facts.memlock_bytes {
            Ok(Some(bytes)) => json!(bytes),
            Ok(None) => json!("unlimited"),
            Err(_) => Value::Null,
        },
        "nodes": facts.nodes.iter().map(|node| json!({
            "node": node.id,
            "cpus": node.cpus,
            "memory_bytes": node.memory_bytes,
            "free_bytes": node.free_bytes,
            "distances": node.distances,
        })).collect::<Vec<_>>(),
        "huge_pages": facts.huge_pools.iter().map(|pool| json!({
            "page_bytes": pool.page_bytes,
            "reserved": pool.total,
            "available": pool.available(),
        })).collect::<Vec<_>>(),
        "hugetlbfs": facts.huge_mounts.iter().map(|mount| json!({
            "folder": mount.folder,
            "page": mount.option("pagesize"),
        })).collect::<Vec<_>>(),
        "shm": facts.shm.as_ref().map(|mount| json!({ "huge": mount.option("huge") })),
        "room": facts.room.as_ref().map(|room| json!({
            "mount": room.mount,
            "total_bytes": room.total,
            "free_bytes": room.free,
            "claimed_bytes": room.claimed,
        })),
        "memory_limit": facts.memory_limit.as_ref().map(|limit| json!({
            "file": limit.file,
            "bytes": limit.bytes,
        })),
        "pool_bytes": facts.pool_bytes,
        "transparent_huge": {
            "memfd": facts.transparent.shared,
            "private": facts.transparent.anonymous,
        },
        "network": network(facts),
        "cxl_memory": facts.cxl.iter().map(|memory| json!({
            "name": memory.name,
            "ram_bytes": memory.ram_bytes,
            "pmem_bytes": memory.pmem_bytes,
            "node": memory.node,
            "is_mapped": memory.is_mapped,
        })).collect::<Vec<_>>(),
        "dax": facts.dax.iter().map(|device| json!({
            "path": device.path(),
            "bytes": device.bytes,
            "align_bytes": device.align,
            "node": device.node,
            "driver": device.driver,
        })).collect::<Vec<_>>(),
    })
}

fn network(facts: &Facts) -> Value {
    json!({
        "addresses": facts.reach.addresses.iter().map(|(interface, address)| json!({
            "interface": interface,
            "address": address,
        })).collect::<Vec<_>>(),
        "libibverbs": facts.reach.libibverbs,
        "uverbs": facts.reach.uverbs.iter().map(|(name, usable)| json!({
            "device": name,
            "usable": usable,
        })).collect::<Vec<_>>(),
        "rdma_ports": facts.rdma.iter().map(|port| json!({
            "device": port.device,
            "port": port.port,
            "state": port.state,
            "link": port.link,
            "rate": port.rate,
            "gids_v2": port.gids_v2,
            "node": port.node,
            "is_software": port.is_software,
        })).collect::<Vec<_>>(),
    })
}

fn measurements(measurements: &Measurements) -> Value {
    json!({
        "took_s": measurements.took.as_secs_f64(),
        "syscall_ns": measurements.syscall_ns,
        "futex_wake_ns": measured(&measurements.futex_wake_ns),
        "ping_pong": measurements.ping_pong.iter().map(|pair| json!({
            "cpus": pair.cpus,
            "one_way_ns": measured(&pair.one_way_ns),
        })).collect::<Vec<_>>(),
        "memory": measurements.memory.iter().map(|memory| json!({
            "from_node": memory.from,
            "node": memory.node,
            "page_bytes": memory.page_bytes,
            "over_bytes": memory.bytes,
            "costs": match &memory.costs {
                Ok(costs) => json!({
                    "random_load_ns": costs.latency_ns,
                    "read_gb_s": costs.read_gbs,
                    "write_gb_s": costs.write_gbs,
                    "copy_gb_s": costs.copy_gbs,
                }),
                Err(reason) => json!({ "reason": reason }),
            },
        })).collect::<Vec<_>>(),
    })
}

/// A number, or an object with the reason why it is missing.
fn measured(figure: &Measured<f64>) -> Value {
    match figure {
        Ok(value) => json!(value),
        Err(reason) => json!({ "reason": reason }),
    }
}

fn verdict(verdict: &Verdict) -> Value {
    let choice = |choice: &Choice| json!({ "what": choice.what, "why": choice.why });
    json!({
        "fabrics": verdict.fabrics.iter().map(|fabric| json!({
            "fabric": fabric.name,
            "serves": fabric.serves,
            "lacks": fabric.lacks.iter().map(|lack| json!({
                "what": lack.what,
                "do": lack.fix,
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "fabric": choice(&verdict.fabric),
        "memory": choice(&verdict.memory),
        "placement": choice(&verdict.placement),
        "frames": choice(&verdict.frames),
        "warnings": verdict.warnings.iter().map(|warning| json!({
            "what": warning.what,
            "do": warning.fix,
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use rackpool_shm::host::HostFiles;

    use super::super::credentials_check::CredentialsCheck;
    use super::*;

    #[test]
    fn what_is_not_known_is_null_or_has_its_reason() {
        let facts = Facts::gather(&HostFiles::at("/nonexistent"));
        let verdict = Verdict::of(&facts, &CredentialsCheck::None, None);
        let report = Report { facts, measurements: None, racks: Vec::new(), verdict };
        let value: Value = serde_json::from_str(&of(&report).unwrap()).unwrap();
        assert_eq!(value["measured"], Value::Null);
        assert_eq!(value["facts"]["memlock_bytes"], Value::Null);
        assert_eq!(value["verdict"]["fabric"]["what"], "--fabric emulated");
        assert_eq!(value["verdict"]["fabrics"][2]["serves"], Value::Null);
        assert!(value["facts"]["io_ways"]["reason"].is_string());
        assert_eq!(measured(&Err("busy".into()))["reason"], "busy");
    }
}
