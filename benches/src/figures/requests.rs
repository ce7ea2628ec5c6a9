//! Figure 22: requests between racks by the size of their data.

use rackpool_report::figures::{Figure, Scale};
use rackpool_rrpc::Mode;

use super::{Sizes, panel, series, statement};
use crate::measure::median;
use crate::rrpc::end::{Caller, Provider};

const SIZES: [u32; 8] = [64, 256, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10];
/// Target duration of a round (ns).
const ROUND_NS: f64 = 2e7;
const ROUNDS: usize = 7;

pub(super) fn measure(_: &Sizes) -> anyhow::Result<Figure> {
    let mut caller = Caller::start(Provider::Emulated)?;
    let labels = SIZES.iter().map(|len| rackpool_model::ByteSize((*len).into()).to_string());
    let names = ("data of a request", "million requests/s, one at a time");
    let mut rates = panel("requests", "Requests", names, labels.collect());
    rates.scale = Scale::Log;
    let mut all: [Vec<f64>; 3] = [const { Vec::new() }; 3];
    for len in SIZES {
        let mut times = [const { Vec::new() }; 3];
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let count = (ROUND_NS / caller.calls(None, len, 16)).clamp(4.0, 2000.0) as usize;
        for _ in 0..ROUNDS {
            times[0].push(caller.calls(None, len, count));
            times[1].push(caller.packet_calls(len, count));
            times[2].push(caller.raw_calls(Mode::ThenOneSided, len, count));
        }
        for (all, times) in all.iter_mut().zip(times) {
            all.push(1e3 / median(times));
        }
    }
    caller.stop()?;
    let [ours, packets, one_sided] = &all;
    for (name, values) in
        [("RRPC (rackpool)", ours), ("eRPC's path", packets), ("eRPC, then one-sided", one_sided)]
    {
        rates.series.push(series(name, values.iter().copied()));
    }
    let last = SIZES.len() - 1;
    let (over_packets, over_one_sided) = (ours[last] / packets[last], ours[last] / one_sided[last]);
    let small = ours[0] / packets[0];
    Ok(Figure {
        id: "22".into(),
        title: "Requests between racks".into(),
        setting: "One caller, one request at a time, a core for each side. eRPC's path sends the \
                  data in packets of 1 KiB, a message each; with eRPC and one-sided operations the \
                  answer names the place and the caller reads it."
            .into(),
        panels: vec![rates],
        statements: vec![
            statement(
                "1.5 to 2 times eRPC's throughput with large data",
                format!("{over_packets:.1} times with 256 KiB"),
                over_packets >= 1.5,
                "A message of the emulated fabric costs little more than a copy of its bytes.",
            ),
            statement(
                "1.33 to 1.89 times that of eRPC and one-sided operations with large data",
                format!("{over_one_sided:.2} times with 256 KiB"),
                over_one_sided >= 1.33,
                "With large data both are bound by the line's 100 Gbit/s: there is nothing to gain \
                 above the time of the bytes.",
            ),
            statement(
                "eRPC is as fast below 512 B, where RRPC takes its way",
                format!("RRPC has {small:.2} times eRPC's throughput at 64 B"),
                (0.8..1.25).contains(&small),
                "RRPC keeps deadlines and slots for each request, raw messages nothing.",
            ),
        ],
        notes: vec![
            "FaRM's requests, which the paper also shows, are left out: a message of the emulated \
             fabric is one write into a ring, as they are."
                .into(),
        ],
    })
}
