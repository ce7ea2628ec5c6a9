//! Descriptions of objects, in lists and notifications.

use super::reader::Table;
use super::writer::{self, Value};
use super::{Digest, Malformed, ObjectId};

/// The duration of the construction of an object that is not sealed.
pub const NOT_SEALED: i64 = -1;

/// What the service says of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its id.
    pub id: ObjectId,
    /// Bytes of its data; -1 in the notification of a deletion.
    pub data: i64,
    /// Bytes of its metadata; -1 in the notification of a deletion.
    pub metadata: i64,
    /// How many clients use it.
    pub users: i32,
    /// When it was created, in seconds since 1970.
    pub created_s: i64,
    /// Seconds from its creation to its seal; [`NOT_SEALED`] before the seal.
    pub construction_s: i64,
    /// The digest that the creator computed; `None` if this service has not seen it.
    pub digest: Option<Digest>,
    /// Whether this is the notification of a deletion.
    pub is_deletion: bool,
}

impl ObjectInfo {
    /// The notification that an object is no longer here.
    #[must_use]
    pub const fn deletion(id: ObjectId) -> Self {
        Self {
            id,
            data: -1,
            metadata: -1,
            users: 0,
            created_s: 0,
            construction_s: 0,
            digest: None,
            is_deletion: true,
        }
    }

    /// The fields of its table.
    pub(crate) fn fields(&self) -> Vec<Value<'_>> {
        let digest = self.digest.as_ref().map_or(&[][..], |digest| digest);
        vec![
            Value::String(&self.id.0),
            Value::I64(self.data),
            Value::I64(self.metadata),
            Value::I32(self.users),
            Value::I64(self.created_s),
            Value::I64(self.construction_s),
            Value::String(digest),
            Value::Bool(self.is_deletion),
        ]
    }

    /// Reads a table.
    pub(crate) fn read(table: &Table<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            id: ObjectId::parse(table.string(0)?)?,
            data: table.i64(1)?,
            metadata: table.i64(2)?,
            users: table.i32(3)?,
            created_s: table.i64(4)?,
            construction_s: table.i64(5)?,
            digest: table.string(6)?.try_into().ok(),
            is_deletion: table.bool(7)?,
        })
    }

    /// The message to a subscriber: the length, 8 bytes, and a flatbuffer with this object alone.
    #[must_use]
    pub fn notification(&self) -> Vec<u8> {
        let body = writer::root(&[Value::Tables(vec![self.fields()])]).unwrap_or_default();
        let mut message = (body.len() as u64).to_le_bytes().to_vec();
        message.extend(body);
        message
    }

    /// Reads the flatbuffer of a message to a subscriber.
    ///
    /// # Errors
    /// If it is none.
    pub fn read_notification(body: &[u8]) -> Result<Vec<Self>, Malformed> {
        Table::root(body)?.tables(0)?.map(|table| Self::read(&table?)).collect()
    }
}
