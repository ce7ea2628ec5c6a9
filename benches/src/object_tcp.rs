//! The first get of an object of another rack over the TCP fabric, and the next one, which finds
//! the replica, compared with a GET of a string of the same length from Redis over loopback TCP.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use rackpool_client::{ClientOptions, Pool, RackId};
use rackpool_cluster::{Cluster, ClusterOptions};
use rackpool_model::FabricKind;
use rackpool_objects::{CreateOptions, Store};

use crate::measure::{in_turn, median};
use crate::service::Server;
use crate::table::Table;

const STORE: &str = "tcp";
/// The object of which the rack keeps its replica.
const KEPT: &[u8] = b"kept";
/// Names, lengths in bytes, and the gets of a round.
const SIZES: [(&str, usize, usize); 3] =
    [("1 KiB", 1 << 10, 200), ("1 MiB", 1 << 20, 20), ("64 MiB", 64 << 20, 1)];

/// Runs the section.
pub fn run(table: &mut Table) -> anyhow::Result<()> {
    let mut options = ClusterOptions::ephemeral()?;
    options.daemon_arguments = vec![("--swap", "off".into())];
    options.fabric = FabricKind::Tcp;
    let cluster = Cluster::start(options)?;
    let dir = cluster.options().dir.clone();
    let open = |rack| {
        let pool = Pool::open(ClientOptions::new(&dir, RackId(rack)))?;
        anyhow::Ok(Store::open_or_create(Arc::new(pool), STORE)?)
    };
    let (own, far) = (open(0)?, open(1)?);
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let (socket, port_text) = (dir.join("redis.sock"), port.to_string());
    let (path, dir) = (socket.display().to_string(), dir.display().to_string());
    let words = ["--bind", "127.0.0.1", "--port", &port_text, "--unixsocket", &path];
    let words = [&words[..], &["--save", "", "--dir", &dir]].concat();
    let server = Server::start(Path::new("redis-server"), &words, socket)?;
    let mut redis = Redis::connect(port)?;

    table.section("an object of another rack over TCP, against GET from Redis over TCP");
    for (name, bytes, count) in SIZES {
        let value = vec![7; bytes];
        redis.set(&value)?;
        get_us(&own, &far, &value, count)?;
        redis.get_us(&value, count)?;
        let pair = in_turn(
            || get_us(&own, &far, &value, count).expect("it has just worked"),
            || redis.get_us(&value, count).expect("it has just worked"),
        );
        let detail = format!("{:.0} us against {:.0} us", pair.ours, pair.peer);
        table.at_most(&format!("the first get of {name}"), pair.ratio, 1.0, "x", &detail);
        far.put(KEPT, &value, &CreateOptions::default())?;
        got_us(&own, KEPT, &value)?;
        let pair = in_turn(
            || got_us(&own, KEPT, &value).expect("it has just worked"),
            || redis.get_us(&value, 1).expect("it has just worked"),
        );
        let detail = format!("{:.1} us against {:.1} us", pair.ours, pair.peer);
        table.at_most(&format!("the next get of {name}"), pair.ratio, 1.0, "x", &detail);
        own.delete(KEPT)?;
    }
    drop((own, far, server));
    cluster.stop()
}

/// The median time of a first get in microseconds.
fn get_us(own: &Store, far: &Store, value: &[u8], count: usize) -> anyhow::Result<f64> {
    let ids: Vec<String> = (0..count).map(|number| format!("object-{number}")).collect();
    for id in &ids {
        far.put(id.as_bytes(), value, &CreateOptions::default())?;
    }
    let mut took = Vec::with_capacity(count);
    for id in &ids {
        took.push(got_us(own, id.as_bytes(), value)?);
    }
    for id in &ids {
        own.delete(id.as_bytes())?;
    }
    Ok(median(took))
}

/// The time of a get in microseconds.
fn got_us(own: &Store, id: &[u8], value: &[u8]) -> anyhow::Result<f64> {
    let began = Instant::now();
    let view = own.get(id)?.context("the object is in the store")?;
    let took = began.elapsed().as_secs_f64() * 1e6;
    ensure!(view.len() == value.len() && view.last() == value.last(), "other bytes came");
    Ok(took)
}

/// A connection to Redis.
struct Redis {
    stream: BufReader<TcpStream>,
    into: Vec<u8>,
}

impl Redis {
    fn connect(port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), into: Vec::new() })
    }

    fn set(&mut self, value: &[u8]) -> anyhow::Result<()> {
        let stream = self.stream.get_mut();
        write!(stream, "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n${}\r\n", value.len())?;
        stream.write_all(value)?;
        stream.write_all(b"\r\n")?;
        ensure!(self.line()? == "+OK", "the value was not stored");
        Ok(())
    }

    /// The median time of a GET into memory that is reused, in microseconds.
    fn get_us(&mut self, value: &[u8], count: usize) -> anyhow::Result<f64> {
        self.into.resize(value.len() + 2, 0);
        let mut took = Vec::with_capacity(count);
        for _ in 0..count {
            let began = Instant::now();
            self.stream.get_mut().write_all(b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n")?;
            let head = self.line()?;
            ensure!(head == format!("${}", value.len()), "Redis says {head}");
            self.stream.read_exact(&mut self.into)?;
            took.push(began.elapsed().as_secs_f64() * 1e6);
            ensure!(black_box(&self.into).starts_with(value), "other bytes came");
        }
        Ok(median(took))
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}
