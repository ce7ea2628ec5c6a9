//! The exchange between pyarrow 11's client and its own store, recorded byte by byte: one frame a
//! line, in hexadecimal.

#![allow(clippy::unwrap_used, reason = "a test")]

use rackpool_plasma::protocol::reply::{Place, PlasmaError, Size};
use rackpool_plasma::protocol::{
    Frame, FrameBuffer, FrameLimits, NewObject, ObjectId, ObjectInfo, Reply, Request, info,
};

const RECORDED: &str = include_str!("transcript/pyarrow-11.txt");

const A: ObjectId = ObjectId(*b"aaaaaaaaaaaaaaaaaaaa");
const B: ObjectId = ObjectId(*b"bbbbbbbbbbbbbbbbbbbb");
const K: ObjectId = ObjectId(*b"kkkkkkkkkkkkkkkkkkkk");
const A_DIGEST: [u8; 8] = [0xb5, 0xd1, 0x13, 0x31, 0x12, 0x5c, 0x72, 0x27];
const B_DIGEST: [u8; 8] = [0xe2, 0xed, 0x10, 0x35, 0xa4, 0xdc, 0x5c, 0x41];
/// The size of the store's file.
const FILE: u64 = 0x9a_0000;

/// The recorded frames whose lines begin with `kind`.
fn recorded(kind: &str) -> Vec<FrameBuffer> {
    let lines = RECORDED.lines().filter_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
    let buffers = lines.map(|hex| {
        let digits = hex.as_bytes().chunks_exact(2).map(|pair| std::str::from_utf8(pair).unwrap());
        let bytes: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
        let mut buffer = FrameBuffer::default();
        buffer.push(&bytes);
        buffer
    });
    buffers.collect()
}

fn frame(buffer: &FrameBuffer) -> Frame<'_> {
    buffer.first(&FrameLimits::of_capacity(1 << 20)).unwrap().unwrap()
}

fn creation(id: ObjectId, data: u64, metadata: u64) -> Request<'static> {
    Request::Create { id, evicts: true, data, metadata, device: 0 }
}

fn sealed(id: ObjectId) -> Request<'static> {
    let object = NewObject { id, data: b"data", metadata: b"meta2", digest: B_DIGEST };
    Request::CreateAndSeal { object, evicts: true }
}

#[test]
fn requests_of_its_client_are_understood() {
    let buffers = recorded("request");
    let read: Vec<_> = buffers.iter().map(|buffer| Request::read(frame(buffer)).unwrap()).collect();
    let wanted = [
        Request::Connect,
        creation(A, 5, 3),
        Request::List,
        Request::Seal { id: A, digest: A_DIGEST },
        creation(A, 5, 0),
        creation(K, 50_000_000, 0),
        sealed(B),
        sealed(B),
        Request::Get { ids: vec![B, K], timeout_ms: 10 },
        Request::Release { id: B },
        Request::Contains { id: B },
        Request::Contains { id: K },
        Request::List,
        Request::Delete { ids: vec![B, K] },
        Request::Evict { bytes: 1 },
        Request::Subscribe,
        Request::DebugString,
        Request::SetOptions { name: b"nm", quota: 1000 },
        sealed(K),
        Request::Evict { bytes: 1 },
        Request::List,
    ];
    assert_eq!(read, wanted);
}

/// An object of the get; the second one is absent.
fn object(id: ObjectId, offset: u64) -> (ObjectId, Option<Place>) {
    (id, Some(Place { offset, size: Size { data: 4, metadata: 5 } }).filter(|_| id == B))
}

#[test]
fn replies_of_its_store_are_understood() {
    let buffers = recorded("reply");
    let read: Vec<_> = buffers.iter().map(|buffer| Reply::read(frame(buffer)).unwrap()).collect();
    let place = Place { offset: 64, size: Size { data: 5, metadata: 3 } };
    let wanted = [
        Reply::Connect { capacity: 10_000_000 },
        Reply::Create { id: A, place: Ok(place), file_bytes: FILE },
    ];
    assert_eq!(read[..2], wanted);
    let Reply::List { objects } = &read[2] else { panic!("{:?} is no list", read[2]) };
    let [ObjectInfo { id: A, data: 5, metadata: 3, users: 1, construction_s, digest, .. }] =
        objects[..]
    else {
        panic!("{objects:?} is not the unsealed object alone")
    };
    assert_eq!((construction_s, digest), (info::NOT_SEALED, None));
    let exists = PlasmaError::ObjectExists;
    let full = PlasmaError::OutOfMemory;
    let wanted = [
        Reply::Seal { id: A, error: PlasmaError::Ok },
        Reply::Create { id: A, place: Err(exists), file_bytes: 0 },
        Reply::Create { id: K, place: Err(full), file_bytes: 0 },
        Reply::CreateAndSeal { error: PlasmaError::Ok },
        Reply::CreateAndSeal { error: exists },
        Reply::Get { objects: vec![object(B, 128), object(K, 0)], file_bytes: FILE },
        Reply::Contains { id: B, is_contained: true },
        Reply::Contains { id: K, is_contained: false },
    ];
    assert_eq!(read[3..11], wanted);
    let Reply::List { objects } = &read[11] else { panic!("{:?} is no list", read[11]) };
    let mut digests: Vec<_> = objects.iter().map(|object| (object.id, object.digest)).collect();
    digests.sort_unstable();
    assert_eq!(digests, [(A, Some(A_DIGEST)), (B, Some(B_DIGEST))]);
    let errors = vec![(B, PlasmaError::Ok), (K, PlasmaError::ObjectNonexistent)];
    let wanted = [Reply::Delete { errors }, Reply::Evict { bytes: 0 }];
    assert_eq!(read[12..14], wanted);
    assert!(matches!(&read[14], Reply::DebugString { text } if text.contains("capacity")));
    assert_eq!(read[15], Reply::SetOptions { error: PlasmaError::Ok });
}

#[test]
fn requests_and_replies_that_are_written_are_read_again() {
    for buffer in &recorded("request") {
        let request = Request::read(frame(buffer)).unwrap();
        let mut written = FrameBuffer::default();
        written.push(&request.encode().unwrap());
        assert_eq!(Request::read(frame(&written)).as_ref(), Ok(&request));
    }
    for buffer in &recorded("reply") {
        let reply = Reply::read(frame(buffer)).unwrap();
        let mut written = FrameBuffer::default();
        written.push(&reply.encode().unwrap());
        let again = Reply::read(frame(&written)).unwrap();
        // A create that has failed has a file here too.
        match (&again, &reply) {
            (Reply::Create { place, .. }, Reply::Create { place: Err(error), .. }) => {
                assert_eq!(*place, Err(*error));
            }
            _ => assert_eq!(again, reply),
        }
    }
}

#[test]
fn a_notification_that_is_written_is_read_again() {
    for info in
        [ObjectInfo::deletion(A), ObjectInfo { digest: Some(A_DIGEST), ..ObjectInfo::deletion(B) }]
    {
        let message = info.notification();
        let (length, body) = message.split_first_chunk().unwrap();
        assert_eq!(u64::from_le_bytes(*length), body.len() as u64);
        assert_eq!(ObjectInfo::read_notification(body), Ok(vec![info]));
    }
}

/// Every byte of every recorded frame is set to some values, and every frame is cut at every place.
#[test]
fn no_byte_of_a_client_makes_the_reader_panic() {
    for kind in ["request", "reply"] {
        for buffer in &recorded(kind) {
            let Frame { kind, body } = frame(buffer);
            for at in 0..body.len() {
                for value in [0, 1, 4, 0x7f, 0x80, 0xff] {
                    let mut body = body.to_vec();
                    body[at] = value;
                    let request = Request::read(Frame { kind, body: &body });
                    let reply = Reply::read(Frame { kind, body: &body });
                    assert!(request.is_err() || reply.is_err(), "{kind:?} is both");
                }
                let cut = Frame { kind, body: &body[..at] };
                assert!(
                    Request::read(cut).is_err()
                        || Request::read(cut) == Request::read(frame(buffer))
                );
            }
        }
    }
}
