//! Round trips by iceoryx2 between two processes on cores 0 and 1 that both poll without a pause,
//! for comparison with rackpool's own (`cargo x bench peers`). Prints the nanoseconds of one.
//!
//! `rackpool-peers <pattern> <round trips>`; a pattern is `request-response` or
//! `publish-subscribe`. The other process is this program again; it ends with its standard input.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, bail};
use iceoryx2::prelude::*;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Warm-up round trips, which are not counted.
const WARM_UP: u64 = 20_000;
/// Polls of the other process between two checks whether it should end.
const LOOKS: u32 = 1 << 12;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["answer", pattern, name] => answer(pattern, name),
        [pattern, round_trips] => measure(pattern, round_trips.parse()?),
        _ => bail!("usage: rackpool-peers request-response|publish-subscribe <round trips>"),
    }
}

fn pin_self(core: usize) -> anyhow::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core)?;
    sched_setaffinity(Pid::from_raw(0), &cores).with_context(|| format!("core {core}"))
}

/// The answering process; dropping this ends it.
struct Other(Child);

impl Other {
    fn start(pattern: &str, name: &str) -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["answer", pattern, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.take().context("its output")?;
        let other = Self(process);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        anyhow::ensure!(line.trim() == "ready", "the answering process did not start");
        Ok(other)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // The process ends when its standard input ends.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn measure(pattern: &str, round_trips: u64) -> anyhow::Result<()> {
    set_log_level(LogLevel::Error);
    let name = format!("rackpool/{}", std::process::id());
    let other = Other::start(pattern, &name)?;
    pin_self(0)?;
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let each = match pattern {
        "request-response" => {
            let service = node
                .service_builder(&name.as_str().try_into()?)
                .request_response::<u64, u64>()
                .open()?;
            let client = service.client_builder().create()?;
            time(round_trips, |number| {
                let pending = client.loan_uninit()?.write_payload(number).send()?;
                loop {
                    if let Some(response) = pending.receive()? {
                        anyhow::ensure!(*response == number, "another answer");
                        return Ok(());
                    }
                }
            })?
        }
        "publish-subscribe" => {
            let publisher = there(&node, &name)?.publisher_builder().create()?;
            let subscriber = back(&node, &name)?.subscriber_builder().create()?;
            time(round_trips, |number| {
                publisher.loan_uninit()?.write_payload(number).send()?;
                loop {
                    if let Some(sample) = subscriber.receive()? {
                        anyhow::ensure!(*sample == number, "another answer");
                        return Ok(());
                    }
                }
            })?
        }
        other => bail!("there is no pattern `{other}`"),
    };
    drop(other);
    println!("{each:.1}");
    Ok(())
}

type PubSub =
    iceoryx2::service::port_factory::publish_subscribe::PortFactory<ipc::Service, u64, ()>;

fn there(node: &Node<ipc::Service>, name: &str) -> anyhow::Result<PubSub> {
    pub_sub(node, &format!("{name}/there"))
}

fn back(node: &Node<ipc::Service>, name: &str) -> anyhow::Result<PubSub> {
    pub_sub(node, &format!("{name}/back"))
}

fn pub_sub(node: &Node<ipc::Service>, name: &str) -> anyhow::Result<PubSub> {
    // As in iceoryx2's own benchmark: the fastest configuration, one participant at each end.
    Ok(node
        .service_builder(&name.try_into()?)
        .publish_subscribe::<u64>()
        .max_publishers(1)
        .max_subscribers(1)
        .history_size(0)
        .subscriber_max_buffer_size(1)
        .enable_safe_overflow(true)
        .open_or_create()?)
}

fn time(round_trips: u64, mut once: impl FnMut(u64) -> anyhow::Result<()>) -> anyhow::Result<f64> {
    for number in 0..WARM_UP {
        once(number)?;
    }
    let start = Instant::now();
    for number in 0..round_trips {
        once(number)?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / round_trips as f64)
}

/// The answering process, until its standard input ends.
fn answer(pattern: &str, name: &str) -> anyhow::Result<()> {
    set_log_level(LogLevel::Error);
    let done = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&done);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ended.store(true, Ordering::Relaxed);
    });
    pin_self(1)?;
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    match pattern {
        "request-response" => {
            let service = node
                .service_builder(&name.try_into()?)
                .request_response::<u64, u64>()
                .max_servers(1)
                .max_clients(1)
                .max_response_buffer_size(1)
                .create()?;
            let server = service.server_builder().create()?;
            println!("ready");
            poll(&done, || {
                if let Some(request) = server.receive()? {
                    request.loan_uninit()?.write_payload(*request).send()?;
                }
                Ok(())
            })
        }
        _ => {
            let subscriber = there(&node, name)?.subscriber_builder().create()?;
            let publisher = back(&node, name)?.publisher_builder().create()?;
            println!("ready");
            poll(&done, || {
                if let Some(sample) = subscriber.receive()? {
                    publisher.loan_uninit()?.write_payload(*sample).send()?;
                }
                Ok(())
            })
        }
    }
}

fn poll(done: &AtomicBool, mut once: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<()> {
    while !done.load(Ordering::Relaxed) {
        for _ in 0..LOOKS {
            once()?;
        }
    }
    Ok(())
}
