//! Bytes that a peer of the TCP fabric sends, compared with the simplest implementation of
//! `docs/design/tcp.md`.

use std::sync::Arc;

use rackpool_fabric::tcp::fuzzing::{End, Posting, Serving, Told};
use rackpool_fabric::{
    Event, FabricError, MAX_MESSAGE, MemoryRegion, Operation, RemoteRegion, Transfer, WorkRequest,
};

use crate::Input;
use crate::fabric::Words;
use crate::memory::zeroes;

const MEMORY: usize = 4096;

/// The expected effect of a stream of requests on a server.
#[derive(Default)]
struct Model {
    memory: Vec<u8>,
    answers: Vec<u8>,
    told: Vec<Told>,
    done: u32,
}

impl Model {
    /// Executes the whole stream; returns false when it breaks the protocol, `None` after a
    /// goodbye.
    fn serve(&mut self, mut stream: &[u8]) -> Option<bool> {
        while let Some((head, rest)) = stream.split_first_chunk::<16>() {
            let region = u16::from_le_bytes([head[2], head[3]]);
            let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
            let last = u64::from_le_bytes(head[8..].try_into().unwrap());
            stream = rest;
            let place = usize::try_from(last).ok().filter(|at| {
                region == 0 && len > 0 && at.checked_add(len).is_some_and(|end| end <= MEMORY)
            });
            match (head[0], head[1]) {
                (1, 0) => {
                    let Some(at) = place else { return Some(false) };
                    self.acknowledge();
                    self.answers.extend([1, 0, 0, 0]);
                    self.answers.extend(u32::try_from(len).unwrap().to_le_bytes());
                    self.answers.extend(&self.memory[at..at + len]);
                }
                (2, 0) => {
                    let Some(at) = place else { return Some(false) };
                    // An incomplete write is applied up to a word boundary.
                    let some = if stream.len() >= len {
                        self.done += 1;
                        len
                    } else {
                        stream.len().saturating_sub((at + stream.len()) % 8)
                    };
                    self.memory[at..at + some].copy_from_slice(&stream[..some]);
                    stream = &stream[len.min(stream.len())..];
                }
                (3, 0) if region == 0 && (1..=MAX_MESSAGE).contains(&len) && last == 0 => {
                    if stream.len() < len {
                        return Some(true);
                    }
                    self.told.push(Told::Message(stream[..len].to_vec()));
                    stream = &stream[len..];
                }
                (4, 0) if region == 0 && len == 0 => self.told.push(Told::Room(last)),
                (5, 0) if region == 0 && len == 0 && last == 0 => return None,
                _ => return Some(false),
            }
        }
        Some(true)
    }

    fn acknowledge(&mut self) {
        if self.done > 0 {
            self.answers.extend([2, 0, 0, 0]);
            self.answers.extend(std::mem::take(&mut self.done).to_le_bytes());
        }
    }
}

/// Answers with adjacent acknowledgements merged.
fn applied(mut answers: &[u8]) -> Vec<u8> {
    let (mut applied, mut done) = (Vec::new(), 0_u32);
    loop {
        let Some((head, rest)) = answers.split_first_chunk::<8>() else {
            assert!(answers.is_empty(), "half an answer");
            if done > 0 {
                applied.extend([2, 0, 0, 0]);
                applied.extend(done.to_le_bytes());
            }
            return applied;
        };
        let number = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        answers = rest;
        if head[0] == 2 {
            done += number;
            continue;
        }
        if done > 0 {
            applied.extend([2, 0, 0, 0]);
            applied.extend(std::mem::take(&mut done).to_le_bytes());
        }
        let (data, rest) = answers.split_at(number as usize);
        applied.extend(head);
        applied.extend(data);
        answers = rest;
    }
}

fn contents(memory: &Arc<dyn MemoryRegion>) -> Vec<u8> {
    let mut bytes = vec![0; MEMORY];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

/// A stream of requests that arrives in pieces has the same effect as the whole.
pub fn channel(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let piece = usize::from(input.byte()) + 1;
    let stream = input.rest();
    let memory: Arc<dyn MemoryRegion> = Arc::new(Words(zeroes(MEMORY as u64)));
    let mut serving = Serving::new(Arc::clone(&memory)).unwrap();
    let (mut answers, mut told, mut result) = (Vec::new(), Vec::new(), Ok(()));
    for piece in stream.chunks(piece) {
        result = serving.feed(piece, &mut answers);
        told.extend(serving.told());
        if result.is_err() {
            break;
        }
    }
    let mut model = Model { memory: vec![0; MEMORY], ..Model::default() };
    let expected = model.serve(stream);
    model.acknowledge();
    match result {
        Ok(()) => assert_eq!(expected, Some(true)),
        Err(End::Bye) => assert_eq!(expected, None),
        Err(End::Failed(error)) => {
            assert_eq!(expected, Some(false), "{error}");
            assert!(matches!(error, FabricError::Misbehaved { .. }), "{error}");
        }
    }
    assert_eq!(contents(&memory), model.memory);
    assert_eq!(applied(&answers), applied(&model.answers));
    assert_eq!(told, model.told);
}

/// Whatever a server answers, requests complete once and in order, only with the data requested,
/// and no byte is written outside the reads' places.
pub fn answers(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let memory: Arc<dyn MemoryRegion> = Arc::new(Words(zeroes(MEMORY as u64)));
    let (mut posting, local) = Posting::new(Arc::clone(&memory), MEMORY as u64).unwrap();
    let requests: Vec<WorkRequest> = (0..u64::from(input.below(8)))
        .map(|id| {
            let local_offset = id * 512 + u64::from(input.below(8));
            let len = u32::from(input.byte()) + 1;
            let remote = RemoteRegion::FRAMES;
            let transfer = Transfer { local, local_offset, remote, remote_offset: 0, len };
            let is_read = input.byte().is_multiple_of(2);
            let kind = if is_read { Operation::Read } else { Operation::Write };
            WorkRequest { id, operation: kind(transfer) }
        })
        .collect();
    let sent = posting.post(&requests).unwrap();
    assert_eq!(sent.len(), requests.iter().map(wire_bytes).sum::<usize>());
    let piece = usize::from(input.byte()) + 1;
    let stream = input.rest();
    let mut events = Vec::new();
    let mut result = Ok(());
    for piece in stream.chunks(piece) {
        result = posting.feed(piece, &mut events);
        if result.is_err() {
            break;
        }
    }
    if let Err(End::Failed(error)) = result {
        assert!(matches!(error, FabricError::Misbehaved { .. }), "{error}");
    }
    for (event, request) in events.iter().zip(&requests) {
        assert!(matches!(event, Event::Completed { id, result: Ok(()), .. } if *id == request.id));
    }
    assert!(events.len() <= requests.len(), "more completions than requests");
    let mut outside = contents(&memory);
    for request in &requests {
        if let Operation::Read(transfer) = request.operation {
            let at = usize::try_from(transfer.local_offset).unwrap();
            outside[at..at + transfer.len as usize].fill(0);
        }
    }
    assert!(outside.iter().all(|byte| *byte == 0), "a byte landed outside of the reads");
}

/// Bytes of a request on the wire.
const fn wire_bytes(request: &WorkRequest) -> usize {
    match request.operation {
        Operation::Read(_) => 16,
        Operation::Write(transfer) => 16 + transfer.len as usize,
    }
}
