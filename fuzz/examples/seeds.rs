//! Writes the hand-made inputs of the corpora again, for when a format, or the way in which a
//! target reads its scenario, has changed: `cargo run -p rackpool-fuzz --example seeds`. Inputs
//! that were findings (named after what they found) are not touched.

mod peers;
mod plasma;

use std::fs;
use std::path::Path;

use rackpool_model::{
    Access, ClientId, Epoch, GlobalAddr, Incarnation, MemoryId, PageId, PageRange, PageSize,
    PageWord, RackId, StorePosition,
};
use rackpool_shm::memory::scratch;
use rackpool_shm::superblock::{FileKind, Geometry, OwnerProcess, SUPERBLOCK_BYTES, Superblock};
use rackpool_trace::{RackFrames, Recording};
use rackpool_wire::control::{ControlRefusal, ControlReply, ControlRequest, RackStatus, Resume};
use rackpool_wire::encode;
use rackpool_wire::metadata::{
    DirectoryEntry, LastMove, Member, MetadataReply, MetadataRequest, PUSHED, PageLock,
    RackAnnouncement, Refusal, Tagged,
};
use rackpool_wire::swap::{Between, FromServer, PageLife, SwapId, ToServer};

const ADDR: GlobalAddr = GlobalAddr::from_raw(0x64_0040);
const POSITION: StorePosition = StorePosition { store: 77, boot: 3, server: 99, commit: 12 };

fn main() -> anyhow::Result<()> {
    messages()?;
    frames()?;
    let words = |code: u8, status: u32, words: [u64; 6]| {
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        [&[code][..], &status.to_le_bytes(), &words, &[9]].concat()
    };
    let live = PageWord::from_raw((1 << 56) | (7 << 32) | 100).raw();
    for code in 1..=7 {
        let name = format!("request-{code}");
        let run = 2 | 3 << 16 | 1 << 40;
        write(
            "words",
            &name,
            &words(code, code.into(), [ADDR.raw(), 64, live, 1 | 4 << 8, run, 5]),
        )?;
    }
    geometry()?;
    hello()?;
    tcp()?;
    verbs()?;
    write("link", "in-order", &[0, 100, 0, 7, 9, 0, 0, 0, 1, 8, 0, 3, 0, 0, 0, 0, 5, 99, 0, 0, 0])?;
    let wrap = [0, 0xff, 0xff, 1, 0, 0, 0, 0, 5, 1, 0, 0, 0];
    write("link", "around-the-ring", &wrap.repeat(20))?;
    write("link", "poked", &[0, 9, 0, 1, 0, 0, 0, 0, 4, 0x80, 1, 255, 255, 0, 0, 0, 0, 0, 0, 5])?;
    slab()?;
    plane()?;
    rrpc()?;
    traces()?;
    ordered()?;
    requests()?;
    plasma::seeds()?;
    scrapes()?;
    replies()?;
    table()
}

/// Requests of Prometheus, a browser and another client to the metrics port; the first byte sets
/// the length of the pieces.
fn scrapes() -> anyhow::Result<()> {
    let prometheus = b"GET /metrics?name[]=x HTTP/1.1\r\nHost: rack:9000\r\n\
        User-Agent: Prometheus/2.53\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\
        X-Prometheus-Scrape-Timeout-Seconds: 10\r\n\r\n";
    write("scrape", "prometheus", &[&[16][..], prometheus].concat())?;
    write("scrape", "head", b"\x02\r\nHEAD /metrics HTTP/1.0\r\n\r\n")?;
    write("scrape", "browser", b"\xffGET / HTTP/1.1\r\nHost: rack\r\nCookie: a=b\r\n\r\n")?;
    let headers = "a: b\r\n".repeat(33);
    write("scrape", "many-headers", format!("\x05GET / HTTP/1.1\r\n{headers}\r\n").as_bytes())?;
    write("scrape", "unfinished", b"\x01POST /metrics HTTP/1.1\r\nHost")
}

/// Requests as programs and as people write them; the first byte sets the length of the pieces.
fn requests() -> anyhow::Result<()> {
    let set = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nvalue\r\n";
    let get = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    write("resp", "pipelined", &[&[6][..], set, get, b"*0\r\n", get].concat())?;
    write("resp", "typed", b"\x03PING\r\nset k \"a\\x41\\n b\" 'c'\n\r\nget k\r\n")?;
    let long = [&b"\x09*2\r\n$4\r\nECHO\r\n$100\r\n"[..], &[b'x'; 100], b"\r\n", get].concat();
    write("resp", "too-long-an-argument", &long)?;
    write("resp", "announced", b"\xff*1048576\r\n$3\r\nDEL\r\n$536870912\r\nxyz")?;
    write("resp", "unauthenticated_peers", b"\x10*11\r\n$4\r\nAUTH\r\n$16385\r\n")
}

/// Replies of a measured server, the last ones malformed; the first byte sets the length of the
/// pieces.
fn replies() -> anyhow::Result<()> {
    let record = b"*4\r\n$6\r\nfield0\r\n$5\r\nvalue\r\n$6\r\nfield1\r\n$0\r\n\r\n";
    write("replies", "record", &[&[4][..], record, b":1\r\n+OK\r\n"].concat())?;
    write("replies", "nothing", b"\x00*1\r\n$-1\r\n*-1\r\n*0\r\n$-1\r\n")?;
    write(
        "replies",
        "refused",
        b"\x07-NOAUTH Authentication required.\r\n:-7\r\n*2\r\n-ERR\r\n:1\r\n",
    )?;
    write(
        "replies",
        "nested",
        b"\xff*1\r\n*1\r\n*1\r\n*1\r\n+a\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n+a\r\n",
    )?;
    write("replies", "no-text", b"\x02+\xff\xfe\n\xc3\r\n$3\r\n\r\n\0\r\n")?;
    write("replies", "announced", b"\x10*16777216\r\n$536870912\r\nxyz")
}

/// A page that moves, one that had moved before, and an empty trace.
fn traces() -> anyhow::Result<()> {
    let rack = |rack, first| RackFrames { rack, first: PageId(first), frames: 8, free: 4 };
    let racks = [rack(RackId(0), 1), rack(RackId(1), 9)];
    write("trace", "empty", &Recording::start(Vec::new(), 65536, &racks)?.finish()?)?;
    let mut recording = Recording::start(Vec::new(), 65536, &racks)?;
    recording.lives(PageId(3), RackId(1))?;
    for n in 0..40_u32 {
        let access = if n % 3 == 0 { Access::Write } else { Access::Read };
        let at_ns = u64::from(n) * 1_000_000;
        recording.accessed(RackId(0), at_ns, PageId(9 + n % 2), access)?;
        recording.accessed(RackId(1), at_ns + 5, PageId(3), access)?;
    }
    write("trace", "moves", &recording.finish()?)
}

/// A request or an answer of a channel: a head and its content.
fn frame(kind: u8, len: usize, last: Option<u64>, content: &[u8]) -> anyhow::Result<Vec<u8>> {
    let len = u32::try_from(len)?.to_le_bytes();
    let last = last.map(u64::to_le_bytes);
    let last = last.as_ref().map_or(&[][..], |last| last);
    Ok([&[kind, 0, 0, 0][..], &len, last, content].concat())
}

fn tcp() -> anyhow::Result<()> {
    let requests = [
        frame(2, 21, Some(3), &[7; 21])?,
        frame(1, 30, Some(0), &[])?,
        frame(2, 8, Some(4088), &[8; 8])?,
        frame(3, 5, Some(0), b"hello")?,
        frame(4, 0, Some(70), &[])?,
        frame(1, 4096, Some(0), &[])?,
    ]
    .concat();
    for (name, piece) in [("whole", 255), ("in-words", 7), ("byte-by-byte", 0), ("uneven", 10)] {
        write("channel", name, &[&[piece][..], &requests].concat())?;
    }
    write("channel", "goodbye", &[&[50][..], &requests, &frame(5, 0, Some(0), &[])?].concat())?;
    write("channel", "cut-off", &[&[10][..], &frame(2, 100, Some(5), &[7; 60])?].concat())?;
    write("channel", "outside", &[&[10][..], &frame(1, 8, Some(4089), &[])?].concat())?;
    // Three requests (place, length, kind), the length of a piece, the answers.
    let posted = [3, 1, 20, 0, 0, 9, 1, 5, 99, 0];
    let good =
        [frame(1, 21, None, &[7; 21])?, frame(2, 1, None, &[])?, frame(1, 100, None, &[8; 100])?]
            .concat();
    for (name, piece) in [("whole", 255), ("in-words", 7), ("byte-by-byte", 0)] {
        write("answers", name, &[&posted[..], &[piece], &good].concat())?;
    }
    write("answers", "goodbye", &[&posted[..], &[9], &frame(3, 0, None, &[])?].concat())?;
    write("answers", "too-many", &[&posted[..], &[9], &good, &frame(2, 9, None, &[])?].concat())
}

/// Requests, and a peer's treatment of them.
fn rrpc() -> anyhow::Result<()> {
    // Unmeasured modes; a request for exactly 0x1000 B; the peer answers in each mode.
    let call = |mode: u8| vec![3, 0, 0x10, 2, mode, 200, 1, 1];
    let message = |kind: u8, len: [u8; 2]| {
        [&[1, 0, 1, 1, 64][..], &[0, 16, 0, 0], &[0, 0], &len, &[kind, 1]].concat()
    };
    let first = [0];
    let scenario = |parts: &[Vec<u8>]| [&first[..], &parts.concat()].concat();
    write("rrpc", "answered", &scenario(&[call(0), message(4, [0, 16])]))?;
    write("rrpc", "read", &scenario(&[call(1), message(6, [0, 0]), vec![6, 0, 1, 0, 1]]))?;
    write("rrpc", "written", &scenario(&[call(2), message(7, [0, 16])]))?;
    write("rrpc", "given-up", &scenario(&[call(2), vec![5, 0, 1], message(10, [0, 0])]))?;
    let ask = |kind: u8| vec![1, 255, 1, 9, 1, 0, 0, 16, 0, 0, 0, 0, 0, 0, kind, 1];
    let answer = vec![4, 0, 0, 8, 1];
    let done = vec![6, 0, 1, 0, 1];
    write("rrpc", "asked", &scenario(&[ask(0), answer.clone(), ask(8)]))?;
    write("rrpc", "asked-with-a-place", &scenario(&[ask(1), answer, done.clone()]))?;
    write("rrpc", "probed", &scenario(&[ask(2), ask(3)]))?;
    // A window of 0x18000 B, three writes of 64 KiB and reads of as many, a smaller window, ends.
    let window = |bytes: u32| {
        [&[1, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11][..], &bytes.to_le_bytes(), &[1]].concat()
    };
    let transfer = |kind: u8| vec![7, 0xff, 0xff, 0, 0, kind, 1];
    let mut windows = vec![window(0x1_8000)];
    windows.extend([1, 1, 1, 0, 0, 0].map(transfer));
    windows.push(window(0x8000));
    windows.extend([(); 6].map(|()| done.clone()));
    windows.push(window(0x2_0000));
    write("rrpc", "windows", &scenario(&windows))?;
    write("rrpc", "measured", &[&[1][..], &message(4, [8, 0]), &[8, 200, 0, 1]].concat())
}

fn write(target: &str, name: &str, input: &[u8]) -> anyhow::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&folder)?;
    Ok(fs::write(folder.join(name), input)?)
}

fn member() -> Member {
    Member {
        rack: RackId(1),
        incarnation: Incarnation(5),
        memory: MemoryId(77),
        alive: true,
        pages: PageRange { first: PageId(200), count: 16 },
        free_frames: 3,
        control_path: "/dev/shm/rackpool/rack-1/daemon.sock".into(),
        fabric_address: "emulated:/dev/shm/rackpool/rack-1/fabric.sock".into(),
    }
}

fn metadata_requests() -> Vec<MetadataRequest> {
    let (rack, incarnation) = (RackId(1), Incarnation(5));
    vec![
        MetadataRequest::Register(RackAnnouncement {
            rack,
            memory: MemoryId(77),
            incarnation,
            frames: 16,
            page_bytes: 2 << 20,
            seen: Some(POSITION),
            control_path: "/run/daemon.sock".into(),
            fabric_address: "emulated:/run/fabric.sock".into(),
        }),
        MetadataRequest::Heartbeat { rack, incarnation, free_frames: 4, seen_version: 1 << 32 },
        MetadataRequest::Leave { rack, incarnation },
        MetadataRequest::Locate { page: PageId(201) },
        MetadataRequest::GetRoot { name: "table".into() },
        MetadataRequest::PutRoot { name: "table".into(), expected: None, new: Some(ADDR) },
        MetadataRequest::Status,
    ]
}

fn messages() -> anyhow::Result<()> {
    let mut count = 0;
    let mut put = |kind: u8, frame: Vec<u8>| {
        count += 1;
        // The body alone, and the whole frame.
        write("messages", &format!("{count:02}-body"), &[&[kind], &frame[5..]].concat())?;
        write("messages", &format!("{count:02}-frame"), &[&[kind | 0x80], &frame[..]].concat())
    };
    let resume = Some(Resume { client: ClientId(3), memory: MemoryId(77) });
    for message in [
        ControlRequest::Hello { threads: 8, resume },
        ControlRequest::PutRoot { name: "x".into(), expected: Some(ADDR), new: None },
        ControlRequest::RackStatus,
    ] {
        put(0, encode(&Tagged { tag: 9, message })?)?;
    }
    let rack_status = RackStatus { fabric: "emulated".into(), ..Default::default() };
    for message in [
        ControlReply::RackStatus(Box::new(rack_status)),
        ControlReply::Root { addr: Some(ADDR), changed: true },
        ControlReply::Refused(ControlRefusal::Metadata(Refusal::NotMember(RackId(2)))),
    ] {
        put(1, encode(&Tagged { tag: 9, message })?)?;
    }
    for message in metadata_requests() {
        put(2, encode(&Tagged { tag: 9, message })?)?;
    }
    let members = vec![member(), member()];
    for message in [
        MetadataReply::Renewed { position: POSITION, version: 7, members },
        MetadataReply::Refused(Refusal::Invalid("no".into())),
    ] {
        put(3, encode(&Tagged { tag: 9, message })?)?;
    }
    for request in peers::requests() {
        put(4, encode(&request)?)?;
    }
    for reply in peers::replies() {
        put(5, encode(&reply)?)?;
    }
    let swap = SwapId(6);
    let life = |page| PageLife { page: PageId(page), epoch: Epoch::new(3) };
    put(6, encode(&ToServer::Request { page: PageId(9), offered: PageId(200), nonce: 4 })?)?;
    put(6, encode(&ToServer::Commit { swap, page: life(9), offered: life(200) })?)?;
    put(7, encode(&FromServer::Granted { swap, nonce: 4, home: RackId(1) })?)?;
    put(7, encode(&FromServer::Decision { swap, committed: true })?)?;
    for message in peers::about_swaps() {
        put(8, encode(&Between { swap, message })?)?;
    }
    let (rack, incarnation) = (RackId(1), Incarnation(5));
    let message = ToServer::Request { page: PageId(9), offered: PageId(200), nonce: 4 };
    for message in [
        MetadataRequest::Swap { rack, incarnation, message },
        MetadataRequest::Explain { page: PageId(201) },
    ] {
        put(2, encode(&Tagged { tag: 9, message })?)?;
    }
    for message in [
        MetadataReply::Swap {
            message: FromServer::Decision { swap, committed: true },
            position: POSITION,
        },
        MetadataReply::Explained(scenario()),
    ] {
        put(3, encode(&Tagged { tag: PUSHED, message })?)?;
    }
    Ok(())
}

fn scenario() -> DirectoryEntry {
    let (swap, requester) = (SwapId(1 << 32 | 6), RackId(1));
    let (page, offered) = (PageId(9), PageId(200));
    DirectoryEntry {
        page,
        born: RackId(0),
        memory: MemoryId(77),
        home: Some(RackId(2)),
        moved: Some(LastMove { swap: SwapId(1 << 32 | 5), epoch: Epoch::new(3) }),
        locked: Some(PageLock { swap, requester, wanted: page, offered, committing: true }),
        waiting: vec![RackId(3), RackId(4)],
    }
}

fn frames() -> anyhow::Result<()> {
    let mut stream = vec![3];
    for (tag, message) in (0..).zip(metadata_requests()) {
        stream.extend(encode(&Tagged { tag, message })?);
    }
    write("frames", "many", &stream)?;
    stream.truncate(stream.len() - 3);
    write("frames", "cut-short", &stream)?;
    write("frames", "too-long", &[1, 1, 0, 16, 0, 1, 0])
}

fn geometry() -> anyhow::Result<()> {
    for (name, kind) in [("metadata", FileKind::Metadata), ("client", FileKind::Client)] {
        let mapping = scratch(SUPERBLOCK_BYTES, None, None)?;
        let block = mapping.view::<Superblock>(0)?;
        let is_client = kind == FileKind::Client;
        if is_client {
            block.set_owner(OwnerProcess { pid: 4711, started: 815 });
        }
        block.format(&Geometry {
            kind,
            rack: RackId(7),
            memory: MemoryId(0x5678 << 64 | 0x1234),
            page_size: PageSize::DEFAULT,
            frames: 512,
            client: ClientId(is_client.into()),
            threads: if is_client { 64 } else { 0 },
        });
        block.set_first_page(PageId(100));
        block.set_incarnation(Incarnation(9));
        let mut bytes = [0; 128];
        mapping.read(0, &mut bytes)?;
        write("geometry", name, &[&[1], &bytes[..]].concat())?;
    }
    Ok(())
}

fn verbs() -> anyhow::Result<()> {
    // 20 small and 3 large messages; 16 are taken, 2 of them large.
    write("verbs", "numbers", &[0, 20, 0, 0, 0, 0, 3, 1, 0, 0, 1, 2, 0, 16, 0])
}

fn hello() -> anyhow::Result<()> {
    let packet = |kind: u32, body: &[u8]| {
        let len = u32::try_from(body.len()).unwrap_or(0);
        [&b"rackfuzz"[..], &[kind, 2, len].map(u32::to_le_bytes).concat(), body].concat()
    };
    let mut body = [7; 48];
    body[2..8].copy_from_slice(&[1, 0, 0, 0, 0, 0]);
    let (hello, proof) = (packet(1, &body), packet(3, &[8; 32]));
    write("hello", "hello", &hello)?;
    write("hello", "proof", &[hello, proof].concat())?;
    write("hello", "refusal", &packet(2, b"full"))?;
    write("hello", "offer", &packet(4, &[5; 40]))?;
    write("hello", "ready", &packet(5, &[]))?;
    let regions = [&[2, 0, 0, 0][..], &[0, 16, 0, 0, 0, 0, 0, 0].repeat(2)].concat();
    write("offer", "tcp", &[&[1, 0, 0, 0][..], &[3; 16], &regions].concat())?;
    let window = [&[0, 0, 0, 0, 0, 127, 0, 0][..], &[0, 0, 16, 0, 0, 0, 0, 0, 9, 0, 0, 0], &[0; 4]];
    let window = window.concat();
    let start = [17, 0, 0, 0, 1, 2, 3, 0, 0, 0, 5, 16, 1, 0, 0, 0];
    write("offer", "verbs", &[&start[..], &[5; 16], &window, &window].concat())
}

fn slab() -> anyhow::Result<()> {
    // Small objects, a run, frees, restarts.
    let start = [0, 1, 9, 0, 0, 0];
    let alloc = |bytes: u16| [&[0, 2][..], &bytes.to_le_bytes()].concat();
    let run = |kilobytes: u8| vec![0, 1, kilobytes];
    let free = |which: u8| vec![3, which, 2];
    let objects = [alloc(16), alloc(16), alloc(100), run(20), alloc(4096), vec![6]].concat();
    let frees = [free(3), vec![5], free(0), free(0), vec![6], run(30)].concat();
    write("slab", "objects-and-runs", &[&start[..], &objects, &frees].concat())?;
    // (frame, page word: live, epoch 1, page n), then a header.
    let word = |frame: u8, page: u8| vec![frame, 0, 1, 1, page, 0, 0, 0, 1];
    let header = |frame: u8, pages: u8, index: u8| vec![frame, 1, 2, pages, index];
    let scenario = |pieces: &[Vec<u8>]| [&start[..], &objects, &pieces.concat()].concat();
    let damaged = |count: u8| vec![7, count - 1];
    write("slab", "two-frames-one-page", &scenario(&[damaged(1), word(5, 0), alloc(16), vec![6]]))?;
    write("slab", "long-run", &scenario(&[damaged(2), header(0, 9, 0), header(3, 9, 0), free(0)]))?;
    let tail = [damaged(3), word(6, 6), header(6, 3, 0), header(7, 3, 1), free(9), vec![5, 6]];
    write("slab", "half-a-run", &scenario(&tail))?;
    let bits = vec![7, 0, 0, 2, 8, 255, 255, 255, 255, 255, 255, 255, 255];
    write("slab", "bits-behind-the-last-object", &scenario(&[bits, free(2), free(2), alloc(4096)]))
}

fn plane() -> anyhow::Result<()> {
    let open = vec![0, 0];
    let ask = |cell: u8, kind: u8, request: &[u8]| {
        [&[1, 0, 0, cell, kind, 2, 3, 0, 0, 0], request].concat()
    };
    let refill = |bytes: u16, count: u8| [&[1][..], &bytes.to_le_bytes(), &[count]].concat();
    let step = vec![14, 3];
    let stays = 2;
    let client = [
        open.clone(),
        ask(0, 0, &refill(64, 8)),
        ask(1, 0, &[4]),
        ask(2, 0, &refill(8192, 2)),
        ask(3, stays, &refill(64, 3)),
        ask(0, 0, &[0]),
    ]
    .concat();
    write(
        "plane",
        "a-client-lives-and-dies",
        &[client.clone(), vec![8, 0], step.clone()].concat(),
    )?;
    write(
        "plane",
        "a-daemon-dies",
        &[client.clone(), vec![9, 0, 14, 9], ask(0, 0, &[4])].concat(),
    )?;
    // Members 1 and 2, one of which has free frames; a full rack requests objects from it.
    let member = |rack: u8, first: u16, free: u32| {
        let mut member = vec![1, rack, 0, 1];
        member.extend(first.to_le_bytes());
        member.extend(16_u32.to_le_bytes());
        member.extend(free.to_le_bytes());
        member.push(1);
        member
    };
    let members = [vec![10, 1, 2], member(1, 200, 9), member(2, 300, 1)].concat();
    let full: Vec<u8> = (0..4).flat_map(|cell| ask(cell, 0, &refill(4096, 200))).collect();
    let call = vec![11, 1, 1, 1, 14, 1];
    let objects = [&[13, 5, 3][..], &[1, 200, 0, 0, 0].repeat(3), &[0]].concat();
    let spill = [open.clone(), members.clone(), full, call.clone(), objects, step.clone()].concat();
    write("plane", "a-full-rack-spills", &[spill.clone(), vec![8, 0]].concat())?;
    write("plane", "a-daemon-dies-while-objects-travel", &[spill, vec![9, 0]].concat())?;
    // Rack 1 connects, allocates, repeats the request, frees.
    let accept = vec![11, 1, 1, 0];
    let allocate = vec![12, 0, 1, 0, 1, 5, 2, 3, 0, 0, 5, 1, 64, 9, 0, 1, 7];
    let peer = [accept, allocate.clone(), step.clone(), allocate, step.clone()].concat();
    let damage = vec![9, 3, 1, 2, 1, 1, 4, 0, 1, 3, 3];
    write("plane", "another-rack-allocates", &peer)?;
    write("plane", "a-record-is-damaged", &[peer, damage].concat())?;
    let translate = ask(0, 0, &[0]);
    let located = vec![10, 0, 2, 1, 1, 200, 0, 0, 0];
    let lease = [open, members, translate, located, call, vec![13, 0, 3, 0, 0, 0]].concat();
    write("plane", "a-page-elsewhere", &[lease, ask(1, 0, &[5, 1, 8, 1, 0, 0]), step].concat())?;
    let garbage = [&[6, 0, 1, 0, 0, 0, 0][..], &[0xa5; 64]].concat();
    write("plane", "a-client-scribbles", &[client, garbage, vec![8, 0]].concat())
}

/// Maps with several leaves, scanned from both ends; maps with sets; maps with damaged nodes.
fn ordered() -> anyhow::Result<()> {
    let many: Vec<u8> =
        (0..40_u8).flat_map(|key| [0, key.wrapping_mul(37), 8 * (key % 16)]).collect();
    let looks = [7, 3, 1, 7, 200, 3, 7, 111, 0, 11, 7, 1, 2];
    let gone: Vec<u8> = (0..20_u8).flat_map(|key| [0, key.wrapping_mul(37), 7]).collect();
    write("ordered", "grow-and-shrink", &[&many[..], &looks, &gone, &looks].concat())?;
    let ranks: Vec<u8> =
        (0..20_u8).flat_map(|member| [9, member % 7, member.wrapping_mul(41)]).collect();
    let small = [&[12, 1][..], &2.5_f64.to_le_bytes(), &[1, 0, 0, 0, b'm']].concat();
    let small = [&small[..], &[0; 41][..41 - small.len()]].concat();
    write("ordered", "sorted-sets", &[&ranks[..], &[9, 0, 7, 9, 3, 134], &small].concat())?;
    let pokes: Vec<u8> = (0..20_u8)
        .flat_map(|at| {
            [13, at, at % 8, at.wrapping_mul(5), at % 3, 1 << (at % 8), 7, at, 1, 7, 9, 3]
        })
        .collect();
    write("ordered", "damaged-nodes", &[&many[..], &ranks, &pokes, &gone].concat())
}

fn table() -> anyhow::Result<()> {
    let put = |key: u8, kind: u8| [0, key, kind, key];
    let many: Vec<u8> = (0..60).flat_map(|key| put(key, 0)).collect();
    let gone: Vec<u8> = (0..30).flat_map(|key| [0, key, 6, 0]).collect();
    write("table", "split-and-compact", &[&many[..], &gone, &many[..80], &[9, 10, 9]].concat())?;
    let large: Vec<u8> = (0..20).flat_map(|key| put(key, 0x80 | (0x40 * (key & 1)))).collect();
    let swaps: Vec<u8> = (0..20).flat_map(|key| [0, key, 5, 1]).collect();
    write("table", "large-values", &[&large[..], &swaps, &[9]].concat())?;
    // Every fourth line gets a flipped bit.
    let flips: Vec<u8> = (0..20_u8).flat_map(|at| [11, at * 4, 0, at, 1 << (at % 8), 9]).collect();
    write("table", "flipped-bits", &[&many[..], &flips, &gone].concat())?;
    let words: Vec<u8> = (0..20_u8).flat_map(|at| [11, at, 0, 200, 8, at * 2, 0, 9]).collect();
    write("table", "words-from-elsewhere", &[&many[..], &words, &gone].concat())
}
