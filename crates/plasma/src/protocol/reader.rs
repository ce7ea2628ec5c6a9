//! A reader of flatbuffers. Each load is checked against the bytes of the frame, so any bytes give
//! values or an error. It allocates nothing.
//!
//! A table begins with the signed distance to its vtable, which is subtracted. The vtable has its
//! own size, the size of the table and the offset of each field in the table, 2 bytes each.
//! Strings, lists and tables are reached through unsigned offsets from the place of the offset.

/// Why bytes are no message of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The frame's version.
    #[error("the frame has version {0}; this service speaks version 0 of Plasma's protocol")]
    Version(i64),
    /// The frame's type.
    #[error("a client does not send messages of type {0}")]
    Kind(i64),
    /// The frame's length.
    #[error("the frame's length is negative or above the limit")]
    FrameLength,
    /// An offset leads out of the frame.
    #[error("an offset in the flatbuffer leads out of it")]
    Offset,
    /// A list is announced that the frame has no room for.
    #[error("a list in the flatbuffer is longer than the frame")]
    List,
    /// A field that the message needs.
    #[error("the flatbuffer lacks field {0}")]
    Missing(usize),
    /// An id that is not 20 bytes.
    #[error("an object's id is not 20 bytes")]
    IdLength,
    /// A digest that is not 8 bytes.
    #[error("a digest is not 8 bytes")]
    DigestLength,
    /// A code that names no error.
    #[error("{0} names no error of Plasma")]
    ErrorCode(i32),
    /// Lists of one message that differ in length.
    #[error("the lists of a batch differ in length")]
    BatchLength,
}

/// Bytes of a flatbuffer, with checked loads.
#[derive(Clone, Copy, Debug)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn range(self, at: usize, length: usize) -> Result<&'a [u8], Malformed> {
        let end = at.checked_add(length).ok_or(Malformed::Offset)?;
        self.0.get(at..end).ok_or(Malformed::Offset)
    }

    fn load<const N: usize>(self, at: usize) -> Result<[u8; N], Malformed> {
        self.range(at, N)?.try_into().map_err(|_| Malformed::Offset)
    }

    fn length(self, at: usize) -> Result<usize, Malformed> {
        let length = u32::from_le_bytes(self.load(at)?);
        usize::try_from(length).map_err(|_| Malformed::Offset)
    }

    /// Where the offset at `at` leads.
    fn target(self, at: usize) -> Result<usize, Malformed> {
        at.checked_add(self.length(at)?).ok_or(Malformed::Offset)
    }

    /// The bytes after the length at `at`.
    fn counted(self, at: usize) -> Result<&'a [u8], Malformed> {
        self.range(at.saturating_add(4), self.length(at)?)
    }
}

/// A table of a flatbuffer.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    bytes: Bytes<'a>,
    at: usize,
    /// The offsets of the fields.
    fields: &'a [u8],
}

impl<'a> Table<'a> {
    /// The table at the root of a flatbuffer.
    ///
    /// # Errors
    /// If it does not lie within the bytes.
    pub fn root(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let bytes = Bytes(bytes);
        Self::at(bytes, bytes.target(0)?)
    }

    fn at(bytes: Bytes<'a>, at: usize) -> Result<Self, Malformed> {
        const HEADER: usize = 4;

        let distance = i32::from_le_bytes(bytes.load(at)?);
        let vtable = i64::try_from(at).map_err(|_| Malformed::Offset)? - i64::from(distance);
        let vtable = usize::try_from(vtable).map_err(|_| Malformed::Offset)?;
        let size = usize::from(u16::from_le_bytes(bytes.load(vtable)?));
        let fields = bytes.range(vtable, size)?.get(HEADER..).ok_or(Malformed::Offset)?;
        Ok(Self { bytes, at, fields })
    }

    /// Where field `index` lies; `None` if it has its default.
    fn place(&self, index: usize) -> Option<usize> {
        let offset = self.fields.get(index * 2..)?.first_chunk()?;
        let offset = usize::from(u16::from_le_bytes(*offset));
        (offset != 0).then(|| self.at.saturating_add(offset))
    }

    /// A number of `N` bytes; zeros if it has its default.
    fn number<const N: usize>(&self, index: usize) -> Result<[u8; N], Malformed> {
        self.place(index).map_or(Ok([0; N]), |at| self.bytes.load(at))
    }

    /// A truth value; false if it is absent.
    ///
    /// # Errors
    /// If the field leads out of the bytes, as for all fields.
    pub fn bool(&self, index: usize) -> Result<bool, Malformed> {
        Ok(self.number::<1>(index)? != [0])
    }

    /// A number; 0 if it is absent.
    ///
    /// # Errors
    /// If the field leads out of the bytes.
    pub fn i32(&self, index: usize) -> Result<i32, Malformed> {
        self.number(index).map(i32::from_le_bytes)
    }

    /// A number; 0 if it is absent.
    ///
    /// # Errors
    /// If the field leads out of the bytes.
    pub fn i64(&self, index: usize) -> Result<i64, Malformed> {
        self.number(index).map(i64::from_le_bytes)
    }

    /// A number; 0 if it is absent.
    ///
    /// # Errors
    /// If the field leads out of the bytes.
    pub fn u64(&self, index: usize) -> Result<u64, Malformed> {
        self.number(index).map(u64::from_le_bytes)
    }

    /// A structure of `N` bytes in the table.
    ///
    /// # Errors
    /// If the field leads out of the bytes, or is absent.
    pub fn structure<const N: usize>(&self, index: usize) -> Result<[u8; N], Malformed> {
        self.bytes.load(self.place(index).ok_or(Malformed::Missing(index))?)
    }

    /// The bytes of a string.
    ///
    /// # Errors
    /// If the field leads out of the bytes, or is absent.
    pub fn string(&self, index: usize) -> Result<&'a [u8], Malformed> {
        let at = self.place(index).ok_or(Malformed::Missing(index))?;
        self.bytes.counted(self.bytes.target(at)?)
    }

    /// The elements of a list, `N` bytes each; empty if the list is absent.
    ///
    /// # Errors
    /// If the field leads out of the bytes, or the list is longer than these.
    pub fn list<const N: usize>(&self, index: usize) -> Result<&'a [[u8; N]], Malformed> {
        let Some(at) = self.place(index) else { return Ok(&[]) };
        let at = self.bytes.target(at)?;
        let length = self.bytes.length(at)?.checked_mul(N).ok_or(Malformed::List)?;
        let elements = self.bytes.range(at.saturating_add(4), length);
        Ok(elements.map_err(|_| Malformed::List)?.as_chunks().0)
    }

    /// The strings of a list; none if the list is absent.
    ///
    /// # Errors
    /// If the list leads out of the bytes, or if its strings, of at least `least` bytes each, do
    /// not fit the bytes side by side. So what a caller keeps of each is no more than what has
    /// arrived.
    pub fn strings(
        &self,
        index: usize,
        least: usize,
    ) -> Result<impl ExactSizeIterator<Item = Result<&'a [u8], Malformed>> + use<'a>, Malformed>
    {
        const OFFSET_AND_LENGTH: usize = 8;

        let (places, bytes) = (self.offsets(index)?, self.bytes);
        let needed = places.len().saturating_mul(least.saturating_add(OFFSET_AND_LENGTH));
        if needed > bytes.0.len() {
            return Err(Malformed::List);
        }
        Ok(places.map(move |at| bytes.counted(bytes.target(at)?)))
    }

    /// The tables of a list; none if the list is absent.
    ///
    /// # Errors
    /// If the list leads out of the bytes.
    pub fn tables(
        &self,
        index: usize,
    ) -> Result<impl ExactSizeIterator<Item = Result<Self, Malformed>> + use<'a>, Malformed> {
        let bytes = self.bytes;
        Ok(self.offsets(index)?.map(move |at| Self::at(bytes, bytes.target(at)?)))
    }

    /// The places of the offsets in a list.
    fn offsets(
        &self,
        index: usize,
    ) -> Result<impl ExactSizeIterator<Item = usize> + use<'a>, Malformed> {
        let count = self.list::<4>(index)?.len();
        let begin = match self.place(index) {
            Some(at) => self.bytes.target(at)?.saturating_add(4),
            None => 0,
        };
        Ok((0..count).map(move |number| begin + number * 4))
    }
}
