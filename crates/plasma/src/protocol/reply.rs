//! What the service answers.

use std::iter;

use super::reader::Table;
use super::request::ids;
use super::writer::Value;
use super::{Frame, MAP_GAP_BYTES, Malformed, MessageKind, ObjectId, ObjectInfo, SEGMENT, framed};

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlasmaError {
    /// It succeeded.
    Ok = 0,
    /// There is an object of this id.
    ObjectExists = 1,
    /// There is no object of this id that the client may use so.
    ObjectNonexistent = 2,
    /// There is no memory for the object.
    OutOfMemory = 3,
    /// The object is deleted when it is sealed and no client uses it any more.
    ObjectNotSealed = 4,
    /// The object is deleted when no client uses it any more.
    ObjectInUse = 5,
}

impl PlasmaError {
    const ALL: [Self; 6] = [
        Self::Ok,
        Self::ObjectExists,
        Self::ObjectNonexistent,
        Self::OutOfMemory,
        Self::ObjectNotSealed,
        Self::ObjectInUse,
    ];

    fn of(code: i32) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }
}

/// Bytes of data and of metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Bytes of data.
    pub data: u64,
    /// Bytes of metadata, which follow the data directly.
    pub metadata: u64,
}

impl Size {
    /// All bytes; `None` if no memory has room for them.
    #[must_use]
    pub fn total(self) -> Option<u64> {
        self.data.checked_add(self.metadata)
    }
}

/// Where an object lies in the file that clients map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Offset of the data.
    pub offset: u64,
    /// Its bytes.
    pub size: Size,
}

/// The size of the data of an object that is absent.
const ABSENT: u64 = u64::MAX;
/// Bytes of the structure that describes a place.
const PLACE_BYTES: usize = 48;

/// The structure that describes a place: file, offset and bytes of the data, offset and bytes of
/// the metadata, device.
fn structure(place: Option<Place>) -> Vec<u8> {
    let absent = [0, 0, ABSENT, 0, 0];
    let words = place.map_or(absent, |Place { offset, size }| {
        let metadata = offset.wrapping_add(size.data);
        [SEGMENT.unsigned_abs().into(), offset, size.data, metadata, size.metadata]
    });
    // The device is a number of 4 bytes, which is 0, and 4 bytes of padding.
    words.into_iter().chain([0]).flat_map(u64::to_le_bytes).collect()
}

fn place(structure: &[u8; PLACE_BYTES]) -> Option<Place> {
    let words = structure.as_chunks().0;
    let word = |number: usize| u64::from_le_bytes(words[number]);
    let size = Size { data: word(2), metadata: word(4) };
    (size.data != ABSENT).then_some(Place { offset: word(1), size })
}

/// A reply. `file_bytes` in it is the length of the file that clients map.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of docs/design/plasma.md")]
pub enum Reply {
    Create { id: ObjectId, place: Result<Place, PlasmaError>, file_bytes: u64 },
    CreateAndSeal { error: PlasmaError },
    CreateAndSealBatch { error: PlasmaError },
    Abort { id: ObjectId },
    Seal { id: ObjectId, error: PlasmaError },
    Get { objects: Vec<(ObjectId, Option<Place>)>, file_bytes: u64 },
    Delete { errors: Vec<(ObjectId, PlasmaError)> },
    Contains { id: ObjectId, is_contained: bool },
    List { objects: Vec<ObjectInfo> },
    Connect { capacity: u64 },
    Evict { bytes: u64 },
    SetOptions { error: PlasmaError },
    DebugString { text: String },
    RefreshLru,
}

impl Reply {
    /// Returns true if the client needs the descriptor of the file to use this reply.
    #[must_use]
    pub fn has_place(&self) -> bool {
        match self {
            Self::Create { place, .. } => place.is_ok(),
            Self::Get { objects, .. } => objects.iter().any(|(_, place)| place.is_some()),
            _ => false,
        }
    }

    /// The frame of this reply; `None` if it would exceed 2 GiB.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let error = |error: PlasmaError| Value::I32(error as i32);
        let map_bytes = |file_bytes: u64| signed(file_bytes.saturating_add(MAP_GAP_BYTES));
        let (kind, fields) = match self {
            Self::Create { id, place, file_bytes } => (
                MessageKind::CreateReply,
                vec![
                    Value::String(&id.0),
                    // A client reads the place even of a create that has failed.
                    Value::Structure(place.map_or(vec![0; PLACE_BYTES], |p| structure(Some(p)))),
                    error(place.err().unwrap_or(PlasmaError::Ok)),
                    Value::I32(SEGMENT),
                    Value::I64(map_bytes(*file_bytes)),
                ],
            ),
            Self::CreateAndSeal { error: outcome } => {
                (MessageKind::CreateAndSealReply, vec![error(*outcome)])
            }
            Self::CreateAndSealBatch { error: outcome } => {
                (MessageKind::CreateAndSealBatchReply, vec![error(*outcome)])
            }
            Self::Abort { id } => (MessageKind::AbortReply, vec![Value::String(&id.0)]),
            Self::Seal { id, error: outcome } => {
                (MessageKind::SealReply, vec![Value::String(&id.0), error(*outcome)])
            }
            Self::Get { objects, file_bytes } => {
                let places = objects.iter().map(|(_, place)| structure(*place)).collect();
                let (files, sizes) = if self.has_place() {
                    (vec![SEGMENT], vec![map_bytes(*file_bytes)])
                } else {
                    (Vec::new(), Vec::new())
                };
                (
                    MessageKind::GetReply,
                    vec![
                        Value::Strings(objects.iter().map(|(id, _)| &id.0[..]).collect()),
                        Value::Structures(places),
                        Value::I32s(files),
                        Value::I64s(sizes),
                        Value::Tables(Vec::new()),
                    ],
                )
            }
            Self::Delete { errors } => (
                MessageKind::DeleteReply,
                vec![
                    Value::I32(i32::try_from(errors.len()).unwrap_or(i32::MAX)),
                    Value::Strings(errors.iter().map(|(id, _)| &id.0[..]).collect()),
                    Value::I32s(errors.iter().map(|(_, error)| *error as i32).collect()),
                ],
            ),
            Self::Contains { id, is_contained } => (
                MessageKind::ContainsReply,
                vec![Value::String(&id.0), Value::I32((*is_contained).into())],
            ),
            Self::List { objects } => (
                MessageKind::ListReply,
                vec![Value::Tables(objects.iter().map(ObjectInfo::fields).collect())],
            ),
            Self::Connect { capacity } => {
                (MessageKind::ConnectReply, vec![Value::I64(signed(*capacity))])
            }
            Self::Evict { bytes } => (MessageKind::EvictReply, vec![Value::U64(*bytes)]),
            Self::SetOptions { error: outcome } => {
                (MessageKind::SetOptionsReply, vec![error(*outcome)])
            }
            Self::DebugString { text } => {
                (MessageKind::DebugStringReply, vec![Value::String(text.as_bytes())])
            }
            Self::RefreshLru => (MessageKind::RefreshLruReply, Vec::new()),
        };
        framed(kind, &fields)
    }

    /// Reads a reply, as a client does.
    ///
    /// # Errors
    /// If the frame is no reply of a store.
    pub fn read(frame: Frame<'_>) -> Result<Self, Malformed> {
        let table = Table::root(frame.body)?;
        let id = || ObjectId::parse(table.string(0)?);
        let file_bytes = |map_bytes: i64| map_bytes.unsigned_abs().saturating_sub(MAP_GAP_BYTES);
        Ok(match frame.kind {
            MessageKind::CreateReply => Self::Create {
                id: id()?,
                place: match error(&table, 2)? {
                    PlasmaError::Ok => {
                        place(&table.structure(1)?).ok_or(PlasmaError::ObjectNonexistent)
                    }
                    error => Err(error),
                },
                file_bytes: file_bytes(table.i64(4)?),
            },
            MessageKind::CreateAndSealReply => Self::CreateAndSeal { error: error(&table, 0)? },
            MessageKind::CreateAndSealBatchReply => {
                Self::CreateAndSealBatch { error: error(&table, 0)? }
            }
            MessageKind::AbortReply => Self::Abort { id: id()? },
            MessageKind::SealReply => Self::Seal { id: id()?, error: error(&table, 1)? },
            MessageKind::GetReply => {
                let places = table.list::<PLACE_BYTES>(1)?.iter().map(place);
                let sizes = table.list(3)?.first().copied().map_or(0, i64::from_le_bytes);
                Self::Get {
                    objects: iter::zip(ids(&table, 0)?, places).collect(),
                    file_bytes: file_bytes(sizes),
                }
            }
            MessageKind::DeleteReply => {
                let codes = table.list(2)?.iter().map(|code| parse(i32::from_le_bytes(*code)));
                let errors = iter::zip(ids(&table, 1)?, codes);
                let errors = errors.map(|(id, error)| Ok((id, error?))).collect::<Result<_, _>>();
                Self::Delete { errors: errors? }
            }
            MessageKind::ContainsReply => {
                Self::Contains { id: id()?, is_contained: table.i32(1)? != 0 }
            }
            MessageKind::ListReply => {
                let objects = table.tables(0)?.map(|object| ObjectInfo::read(&object?));
                Self::List { objects: objects.collect::<Result<_, _>>()? }
            }
            MessageKind::ConnectReply => Self::Connect { capacity: table.u64(0)? },
            MessageKind::EvictReply => Self::Evict { bytes: table.u64(0)? },
            MessageKind::SetOptionsReply => Self::SetOptions { error: error(&table, 0)? },
            MessageKind::DebugStringReply => {
                Self::DebugString { text: String::from_utf8_lossy(table.string(0)?).into_owned() }
            }
            MessageKind::RefreshLruReply => Self::RefreshLru,
            kind => return Err(Malformed::Kind(kind.code())),
        })
    }
}

fn error(table: &Table<'_>, index: usize) -> Result<PlasmaError, Malformed> {
    parse(table.i32(index)?)
}

fn parse(code: i32) -> Result<PlasmaError, Malformed> {
    PlasmaError::of(code).ok_or(Malformed::ErrorCode(code))
}

/// A number of bytes as clients read it.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
