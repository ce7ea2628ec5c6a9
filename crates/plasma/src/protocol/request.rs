//! What clients send.

use std::iter;

use super::reader::Table;
use super::writer::Value;
use super::{Digest, Frame, Malformed, MessageKind, ObjectId, framed};

/// An object that is created and sealed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewObject<'a> {
    /// Its id.
    pub id: ObjectId,
    /// Its data.
    pub data: &'a [u8],
    /// Its metadata.
    pub metadata: &'a [u8],
    /// The digest that the client has computed.
    pub digest: Digest,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of docs/design/plasma.md")]
pub enum Request<'a> {
    Disconnect,
    Create { id: ObjectId, evicts: bool, data: u64, metadata: u64, device: i32 },
    CreateAndSeal { object: NewObject<'a>, evicts: bool },
    CreateAndSealBatch { objects: Vec<NewObject<'a>>, evicts: bool },
    Abort { id: ObjectId },
    Seal { id: ObjectId, digest: Digest },
    Get { ids: Vec<ObjectId>, timeout_ms: i64 },
    Release { id: ObjectId },
    Delete { ids: Vec<ObjectId> },
    Contains { id: ObjectId },
    List,
    Connect,
    Evict { bytes: u64 },
    Subscribe,
    SetOptions { name: &'a [u8], quota: i64 },
    DebugString,
    RefreshLru { ids: Vec<ObjectId> },
}

impl<'a> Request<'a> {
    /// Reads a request. Fields that the service does not need may be absent.
    ///
    /// # Errors
    /// If the frame is no request of a client.
    pub fn read(frame: Frame<'a>) -> Result<Self, Malformed> {
        // A client may end with a frame without flatbuffer.
        if frame.kind == MessageKind::Disconnect {
            return Ok(Self::Disconnect);
        }
        let table = Table::root(frame.body)?;
        let id = |field| ObjectId::parse(table.string(field)?);
        Ok(match frame.kind {
            MessageKind::CreateRequest => Self::Create {
                id: id(0)?,
                evicts: table.bool(1)?,
                data: table.u64(2)?,
                metadata: table.u64(3)?,
                device: table.i32(4)?,
            },
            MessageKind::CreateAndSealRequest => {
                let (data, metadata) = (table.string(2)?, table.string(3)?);
                let digest = digest(table.string(4)?)?;
                let object = NewObject { id: id(0)?, data, metadata, digest };
                Self::CreateAndSeal { object, evicts: table.bool(1)? }
            }
            MessageKind::CreateAndSealBatchRequest => {
                Self::CreateAndSealBatch { objects: batch(&table)?, evicts: table.bool(1)? }
            }
            MessageKind::AbortRequest => Self::Abort { id: id(0)? },
            MessageKind::SealRequest => {
                Self::Seal { id: id(0)?, digest: digest(table.string(1)?)? }
            }
            MessageKind::GetRequest => {
                Self::Get { ids: ids(&table, 0)?, timeout_ms: table.i64(1)? }
            }
            MessageKind::ReleaseRequest => Self::Release { id: id(0)? },
            // Field 0 repeats the number of ids.
            MessageKind::DeleteRequest => Self::Delete { ids: ids(&table, 1)? },
            MessageKind::ContainsRequest => Self::Contains { id: id(0)? },
            MessageKind::ListRequest => Self::List,
            MessageKind::ConnectRequest => Self::Connect,
            MessageKind::EvictRequest => Self::Evict { bytes: table.u64(0)? },
            MessageKind::SubscribeRequest => Self::Subscribe,
            MessageKind::SetOptionsRequest => {
                Self::SetOptions { name: table.string(0)?, quota: table.i64(1)? }
            }
            MessageKind::DebugStringRequest => Self::DebugString,
            MessageKind::RefreshLruRequest => Self::RefreshLru { ids: ids(&table, 0)? },
            kind => return Err(Malformed::Kind(kind.code())),
        })
    }

    /// The frame of this request, as a client sends it; `None` if it would exceed 2 GiB.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let (kind, fields) = self.fields();
        framed(kind, &fields)
    }

    fn fields(&self) -> (MessageKind, Vec<Value<'_>>) {
        match self {
            Self::Disconnect => (MessageKind::Disconnect, Vec::new()),
            Self::Create { id, evicts, data, metadata, device } => (
                MessageKind::CreateRequest,
                vec![
                    Value::String(&id.0),
                    Value::Bool(*evicts),
                    Value::U64(*data),
                    Value::U64(*metadata),
                    Value::I32(*device),
                ],
            ),
            Self::CreateAndSeal { object, evicts } => (
                MessageKind::CreateAndSealRequest,
                vec![
                    Value::String(&object.id.0),
                    Value::Bool(*evicts),
                    Value::String(object.data),
                    Value::String(object.metadata),
                    Value::String(&object.digest),
                ],
            ),
            Self::CreateAndSealBatch { objects, evicts } => (
                MessageKind::CreateAndSealBatchRequest,
                vec![
                    Value::Strings(objects.iter().map(|object| &object.id.0[..]).collect()),
                    Value::Bool(*evicts),
                    Value::Strings(objects.iter().map(|object| object.data).collect()),
                    Value::Strings(objects.iter().map(|object| object.metadata).collect()),
                    Value::Strings(objects.iter().map(|object| &object.digest[..]).collect()),
                ],
            ),
            Self::Abort { id } => (MessageKind::AbortRequest, vec![Value::String(&id.0)]),
            Self::Seal { id, digest } => {
                (MessageKind::SealRequest, vec![Value::String(&id.0), Value::String(digest)])
            }
            Self::Get { ids, timeout_ms } => {
                (MessageKind::GetRequest, vec![listed(ids), Value::I64(*timeout_ms)])
            }
            Self::Release { id } => (MessageKind::ReleaseRequest, vec![Value::String(&id.0)]),
            Self::Delete { ids } => {
                let count = i32::try_from(ids.len()).unwrap_or(i32::MAX);
                (MessageKind::DeleteRequest, vec![Value::I32(count), listed(ids)])
            }
            Self::Contains { id } => (MessageKind::ContainsRequest, vec![Value::String(&id.0)]),
            Self::List => (MessageKind::ListRequest, Vec::new()),
            Self::Connect => (MessageKind::ConnectRequest, Vec::new()),
            Self::Evict { bytes } => (MessageKind::EvictRequest, vec![Value::U64(*bytes)]),
            Self::Subscribe => (MessageKind::SubscribeRequest, Vec::new()),
            Self::SetOptions { name, quota } => {
                (MessageKind::SetOptionsRequest, vec![Value::String(name), Value::I64(*quota)])
            }
            Self::DebugString => (MessageKind::DebugStringRequest, Vec::new()),
            Self::RefreshLru { ids } => (MessageKind::RefreshLruRequest, vec![listed(ids)]),
        }
    }
}

/// A list of ids.
pub(crate) fn listed(ids: &[ObjectId]) -> Value<'_> {
    Value::Strings(ids.iter().map(|id| &id.0[..]).collect())
}

/// The ids in field `index`.
pub(crate) fn ids(table: &Table<'_>, index: usize) -> Result<Vec<ObjectId>, Malformed> {
    table.strings(index, ObjectId::BYTES)?.map(|id| ObjectId::parse(id?)).collect()
}

fn digest(bytes: &[u8]) -> Result<Digest, Malformed> {
    bytes.try_into().map_err(|_| Malformed::DigestLength)
}

/// The objects of a batch: lists of ids, data, metadata and digests of the same length.
fn batch<'a>(table: &Table<'a>) -> Result<Vec<NewObject<'a>>, Malformed> {
    let all = table.strings(0, size_of::<NewObject<'_>>())?;
    let (data, metadata) = (table.strings(2, 0)?, table.strings(3, 0)?);
    let digests = table.strings(4, 0)?;
    if [data.len(), metadata.len(), digests.len()] != [all.len(); 3] {
        return Err(Malformed::BatchLength);
    }
    iter::zip(iter::zip(all, data), iter::zip(metadata, digests))
        .map(|((id, data), (metadata, sum))| {
            let (id, digest) = (ObjectId::parse(id?)?, digest(sum?)?);
            Ok(NewObject { id, data: data?, metadata: metadata?, digest })
        })
        .collect()
}
