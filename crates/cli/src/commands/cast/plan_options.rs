use rackpool_proto::multicast::schedule::{Schedule, Shape};

const MAX_RACKS: u16 = 512;
/// The most transfers of a plan that is shown: larger ones take long and show nothing new.
const MAX_TRANSFERS: u64 = 1 << 22;

/// Checks the values of `--plan` and `--pods`.
pub(super) fn shape(plan: &[String], pods: &[u16]) -> Result<Shape, String> {
    let [racks, blocks, schedule] = plan else {
        return Err("--plan takes three values: racks, blocks and a schedule".into());
    };
    let racks: u16 = racks
        .parse()
        .ok()
        .filter(|racks| (2..=MAX_RACKS).contains(racks))
        .ok_or_else(|| format!("'{racks}' racks: give a number from 2 to {MAX_RACKS}"))?;
    let blocks: u32 = blocks
        .parse()
        .ok()
        .filter(|blocks| *blocks > 0)
        .ok_or_else(|| format!("'{blocks}' blocks: give a number from 1"))?;
    let transfers = u64::from(racks - 1) * u64::from(blocks);
    if transfers > MAX_TRANSFERS {
        return Err(format!(
            "{racks} racks and {blocks} blocks make {transfers} transfers: at most {MAX_TRANSFERS} \
             are shown, choose fewer blocks"
        ));
    }
    match (super::schedule(schedule)?, pods) {
        (Schedule::Hybrid, []) => {
            Err("the hybrid schedule needs --pods, the number of racks of each pod".into())
        }
        (named @ Schedule::Hybrid, pods) => {
            let sum: u64 = pods.iter().map(|pod| u64::from(*pod)).sum();
            if pods.contains(&0) || sum != u64::from(racks) {
                return Err(format!("--pods has {sum} racks, --plan {racks}; no pod may be empty"));
            }
            Ok(Shape::in_pods(named, pods, blocks))
        }
        (named, []) => Ok(Shape::new(named, racks, blocks)),
        (_, _) => Err(format!("--pods is for the hybrid schedule, not for {schedule}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(plan: [&str; 3], pods: &[u16]) -> Result<Shape, String> {
        shape(&plan.map(String::from), pods)
    }

    #[test]
    fn each_schedule_has_a_plan() {
        for name in ["sequential", "chain", "tree", "pipeline", "interleaved"] {
            assert!(checked(["8", "16", name], &[]).unwrap().steps() > 0, "{name}");
        }
        assert_eq!(checked(["8", "16", "hybrid"], &[4, 4]).unwrap().members(), 8);
    }

    #[test]
    fn what_cannot_be_planned_is_explained() {
        for (plan, pods, expected) in [
            (["1", "16", "chain"], &[][..], "from 2 to 512"),
            (["many", "16", "chain"], &[], "'many' racks"),
            (["8", "0", "chain"], &[], "'0' blocks"),
            (["512", "1000000", "chain"], &[], "choose fewer blocks"),
            (["8", "16", "star"], &[], "sequential, chain, tree, pipeline, interleaved, hybrid"),
            (["8", "16", "hybrid"], &[], "needs --pods"),
            (["8", "16", "hybrid"], &[4, 3], "--pods has 7 racks, --plan 8"),
            (["8", "16", "hybrid"], &[8, 0], "no pod may be empty"),
            (["8", "16", "chain"], &[4, 4], "not for chain"),
        ] {
            let error = checked(plan, pods).unwrap_err();
            assert!(error.contains(expected), "{plan:?}: {error}");
        }
        assert!(shape(&[], &[]).unwrap_err().contains("three values"));
    }
}
