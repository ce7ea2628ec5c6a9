//! A writer of flatbuffers. A table is followed by what its fields refer to, so that each offset is
//! known when its target is written.

use std::iter;

/// A field of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// The default of the field.
    Absent,
    /// A truth value.
    Bool(bool),
    /// A number.
    I32(i32),
    /// A number.
    I64(i64),
    /// A number.
    U64(u64),
    /// A structure in the table, whose alignment is 8 bytes.
    Structure(Vec<u8>),
    /// A string.
    String(&'a [u8]),
    /// A list of strings.
    Strings(Vec<&'a [u8]>),
    /// A list of numbers.
    I32s(Vec<i32>),
    /// A list of numbers.
    I64s(Vec<i64>),
    /// A list of structures, whose alignment is 8 bytes.
    Structures(Vec<Vec<u8>>),
    /// A list of tables.
    Tables(Vec<Vec<Self>>),
}

impl Value<'_> {
    /// The bytes of the field in the table, and its alignment.
    fn inline(&self) -> (Vec<u8>, usize) {
        match self {
            Self::Absent => (Vec::new(), 1),
            Self::Bool(value) => (vec![u8::from(*value)], 1),
            Self::I32(value) => (value.to_le_bytes().to_vec(), 4),
            Self::I64(value) => (value.to_le_bytes().to_vec(), 8),
            Self::U64(value) => (value.to_le_bytes().to_vec(), 8),
            Self::Structure(bytes) => (bytes.clone(), 8),
            _ => (vec![0; 4], 4),
        }
    }
}

/// The longest flatbuffer, since offsets are signed numbers of 4 bytes.
const MAX_BYTES: usize = i32::MAX as usize;

/// A flatbuffer whose root is a table with these fields; `None` if it would exceed 2 GiB.
#[must_use]
pub fn root(fields: &[Value<'_>]) -> Option<Vec<u8>> {
    let mut writer = Writer(vec![0; 4]);
    let table = writer.table(fields);
    writer.refer(0, table);
    writer.align(8);
    (writer.0.len() <= MAX_BYTES).then_some(writer.0)
}

struct Writer(Vec<u8>);

impl Writer {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    /// Aligns the bytes that follow a length of 4 bytes.
    fn align_after_length(&mut self, to: usize) {
        self.0.resize((self.0.len() + 4).next_multiple_of(to) - 4, 0);
    }

    /// Lets the offset at `at` lead to `target`.
    fn refer(&mut self, at: usize, target: usize) {
        self.0[at..at + 4].copy_from_slice(&narrow(target - at).to_le_bytes());
    }

    /// Writes a vtable, its table and what the table refers to; the place of the table.
    fn table(&mut self, fields: &[Value<'_>]) -> usize {
        let vtable_bytes = 4 + 2 * fields.len();
        // The table follows the vtable at a multiple of 8.
        self.0.resize((self.0.len() + vtable_bytes).next_multiple_of(8) - vtable_bytes, 0);
        let vtable = self.0.len();
        self.0.resize(vtable + vtable_bytes, 0);
        let table = self.0.len();
        self.0.extend_from_slice(&narrow(table - vtable).to_le_bytes());
        let mut places = Vec::with_capacity(fields.len());
        for (number, field) in fields.iter().enumerate() {
            let (bytes, alignment) = field.inline();
            if bytes.is_empty() {
                places.push(0);
                continue;
            }
            self.align(alignment);
            let place = self.0.len();
            self.0.extend_from_slice(&bytes);
            self.short(vtable + 4 + 2 * number, place - table);
            places.push(place);
        }
        self.short(vtable, vtable_bytes);
        self.short(vtable + 2, self.0.len() - table);
        for (place, field) in iter::zip(places, fields) {
            if let Some(target) = self.target(field) {
                self.refer(place, target);
            }
        }
        table
    }

    /// Writes what a field refers to, if it does; its place.
    fn target(&mut self, field: &Value<'_>) -> Option<usize> {
        Some(match field {
            Value::String(bytes) => self.string(bytes),
            Value::Strings(strings) => {
                let list = self.list(strings.len(), 4, iter::repeat_n(&[0; 4][..], strings.len()));
                for (number, string) in strings.iter().enumerate() {
                    let target = self.string(string);
                    self.refer(list + 4 + 4 * number, target);
                }
                list
            }
            Value::Tables(tables) => {
                let list = self.list(tables.len(), 4, iter::repeat_n(&[0; 4][..], tables.len()));
                for (number, fields) in tables.iter().enumerate() {
                    let target = self.table(fields);
                    self.refer(list + 4 + 4 * number, target);
                }
                list
            }
            Value::I32s(numbers) => {
                let numbers: Vec<_> = numbers.iter().map(|number| number.to_le_bytes()).collect();
                self.list(numbers.len(), 4, numbers.iter().map(|number| &number[..]))
            }
            Value::I64s(numbers) => {
                let numbers: Vec<_> = numbers.iter().map(|number| number.to_le_bytes()).collect();
                self.list(numbers.len(), 8, numbers.iter().map(|number| &number[..]))
            }
            Value::Structures(all) => self.list(all.len(), 8, all.iter().map(|one| &one[..])),
            _ => return None,
        })
    }

    /// A string ends with a zero that its length does not count.
    fn string(&mut self, bytes: &[u8]) -> usize {
        let place = self.list(bytes.len(), 4, [bytes].into_iter());
        self.0.push(0);
        place
    }

    fn list<'a>(
        &mut self,
        length: usize,
        alignment: usize,
        elements: impl Iterator<Item = &'a [u8]>,
    ) -> usize {
        self.align(4);
        self.align_after_length(alignment);
        let place = self.0.len();
        self.0.extend_from_slice(&narrow(length).to_le_bytes());
        elements.for_each(|element| self.0.extend_from_slice(element));
        place
    }

    fn short(&mut self, at: usize, value: usize) {
        let value = u16::try_from(value).unwrap_or(u16::MAX);
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
}

/// A length or distance as flatbuffers have them. [`root`] drops a flatbuffer in which one does not
/// fit.
fn narrow(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
