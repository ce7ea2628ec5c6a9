//! FaRM's access path (Dragojević et al., NSDI 2014): objects with a version in their header, and
//! its low 16 bits in each cache line. A read is one one-sided read; it is repeated if the
//! versions differ. A write is a message: the home locks the object, writes it with the next
//! version, and answers. (The protocol for several objects, its logs and replicas are left out:
//! they cost more.)

use rackpool_fabric::MemoryRegion;

use super::network::{Handler, Home, Network, parse_request, request};
use super::parts::{Parts, part_bytes};
use super::{AccessPath, Setting, System};

/// Bytes of a cache line, and of the data in it: the rest is the line's version.
const LINE: usize = 64;
const DATA: usize = 62;
/// Bytes of an object's header: its version, which is odd while it is locked.
const HEADER: usize = 8;

/// Homes of objects of one size.
pub(super) struct Farm {
    setting: Setting,
    homes: Vec<Home>,
}

/// Cache lines of an object of `object` bytes. The first begins with the header.
const fn lines(object: usize) -> usize {
    (object + HEADER).div_ceil(DATA)
}

impl Farm {
    pub(super) fn start(setting: &Setting) -> anyhow::Result<Self> {
        let lines = lines(setting.item);
        let count = part_bytes(setting) / setting.item as u64;
        let homes = Home::all(count * (lines * LINE) as u64, setting, || handler(lines))?;
        Ok(Self { setting: setting.clone(), homes })
    }
}

impl System for Farm {
    fn client(&self, _: usize) -> anyhow::Result<Box<dyn AccessPath>> {
        let object = self.setting.item;
        let lines = lines(object);
        let raw = vec![0; lines * LINE];
        Ok(Box::new(Parts::new(&self.setting, &self.homes, |home| {
            Ok(Client { network: home.connect()?, object, lines, raw: raw.clone() })
        })?))
    }
}

/// The version in an object's header.
fn version(raw: &[u8]) -> u64 {
    let mut version = [0; HEADER];
    version.copy_from_slice(&raw[..HEADER]);
    u64::from_le_bytes(version)
}

fn handler(lines: usize) -> Handler {
    Box::new(move |frames: &dyn MemoryRegion, message| {
        let (_, place, _, bytes) = parse_request(message).expect("a request of this program");
        let mut raw = vec![0; lines * LINE];
        frames.read(place, &mut raw).expect("an object");
        let next = version(&raw) + 2;
        frames.store(place, next - 1).expect("an object");
        raw[..HEADER].copy_from_slice(&next.to_le_bytes());
        let mut rest = bytes;
        for (index, line) in raw.chunks_mut(LINE).enumerate() {
            let header = if index == 0 { HEADER } else { 0 };
            let (part, later) = rest.split_at(rest.len().min(DATA - header));
            line[header..header + part.len()].copy_from_slice(part);
            line[DATA..].copy_from_slice(&next.to_le_bytes()[..LINE - DATA]);
            rest = later;
        }
        // The first line is last: its version frees the object.
        frames.write(place + LINE as u64, &raw[LINE..]).expect("an object");
        frames.write(place, &raw[..LINE]).expect("an object");
        Vec::from(b"ok")
    })
}

struct Client {
    network: Network,
    object: usize,
    lines: usize,
    raw: Vec<u8>,
}

impl Client {
    fn place(&self, offset: u64) -> u64 {
        offset / self.object as u64 * (self.lines * LINE) as u64
    }
}

impl AccessPath for Client {
    fn read(&mut self, offset: u64, into: &mut [u8]) -> anyhow::Result<()> {
        let place = self.place(offset);
        loop {
            self.network.read(place, &mut self.raw)?;
            let version = version(&self.raw);
            let low = &version.to_le_bytes()[..LINE - DATA];
            if version & 1 == 0 && self.raw.chunks(LINE).all(|line| line[DATA..] == *low) {
                break;
            }
        }
        let mut done = 0;
        for (index, line) in self.raw.chunks(LINE).enumerate() {
            let header = if index == 0 { HEADER } else { 0 };
            let len = (into.len() - done).min(DATA - header);
            into[done..done + len].copy_from_slice(&line[header..header + len]);
            done += len;
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> anyhow::Result<()> {
        let place = self.place(offset);
        self.network.call(request(0, place, from.len(), from)).map(drop)
    }
}
