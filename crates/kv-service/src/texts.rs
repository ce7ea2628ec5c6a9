//! Strings of any length: in an entry or in the memory of large strings.

use std::ops::Range;
use std::sync::Arc;

use rackpool_kv::{EntryChange, Form, KvError, ValueKind};

use crate::failure::{DAMAGED, Failure, WRONG_TYPE, said};
use crate::large::{LargeValue, Part, StringView};
use crate::store::Store;
use crate::values::{self, LARGE_STRING, LargeString};

/// A string that was read.
#[derive(Debug)]
pub enum Text {
    /// From an entry.
    Bytes(Vec<u8>),
    /// From the memory of large strings.
    View(StringView),
}

/// A string to store.
#[derive(Clone, Copy, Debug)]
pub enum NewText<'a> {
    /// In the input.
    Bytes(&'a [u8]),
    /// In the memory of large strings.
    Large(&'a Arc<LargeValue>),
}

/// The value of a key as its entry has it.
enum Found {
    Bytes(Vec<u8>),
    Large(LargeString),
}

impl Text {
    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::View(view) => view.as_slice(),
        }
    }
}

impl NewText<'_> {
    /// The length in bytes.
    #[must_use]
    pub fn len(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Large(value) => usize::try_from(value.len()).unwrap_or(usize::MAX),
        }
    }

    /// Whether the string has no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl Store {
    /// Whether a key has a string.
    pub fn is_string(&mut self, key: &[u8]) -> Result<bool, Failure> {
        let kind = self.keys.read(key)?.map(|entry| entry.form.kind);
        Ok(matches!(kind, Some(ValueKind::STRING | LARGE_STRING)))
    }

    /// The length of a key's string; `None` if the key is absent.
    pub fn text_len(&mut self, key: &[u8]) -> Result<Option<usize>, Failure> {
        Ok(self.find_text(key)?.map(|found| found.len()))
    }

    /// The part of a key's string that `part` chooses by its length; `None` if the key is absent.
    /// [`Failure::Long`] if more than `most` bytes would come from another rack.
    pub fn part_of_text(
        &mut self,
        key: &[u8],
        part: impl Fn(usize) -> Range<usize>,
        most: usize,
    ) -> Result<Option<Text>, Failure> {
        loop {
            let Some(found) = self.find_text(key)? else { return Ok(None) };
            let range = part(found.len());
            let name = match found {
                Found::Bytes(bytes) => {
                    let some = bytes.get(range).unwrap_or_default();
                    return Ok(Some(Text::Bytes(some.to_vec())));
                }
                Found::Large(_) if range.is_empty() => {
                    return Ok(Some(Text::Bytes(Vec::new())));
                }
                Found::Large(name) => name,
            };
            let strings = Arc::clone(&self.strings);
            if range.len() > most && !StringView::is_near(&strings, self.nodes(), name)? {
                return Err(Failure::Long);
            }
            let range = range.start as u64..range.end as u64;
            if let Some(view) = StringView::open(&strings, self.nodes(), name, range)? {
                return Ok(Some(Text::View(view)));
            }
            // The string is gone, so another one is stored by now, or none.
            if self.is_in_transaction() {
                return Err(KvError::Conflict.into());
            }
            if self.keys.read(key)?.and_then(LargeString::of) == Some(name) {
                return Err(DAMAGED);
            }
        }
    }

    fn find_text(&mut self, key: &[u8]) -> Result<Option<Found>, Failure> {
        let Some(entry) = self.keys.read(key)? else { return Ok(None) };
        if entry.form.kind == ValueKind::STRING {
            return Ok(Some(Found::Bytes(entry.value.to_vec())));
        }
        if entry.form.kind == LARGE_STRING {
            return LargeString::of(entry).ok_or(DAMAGED).map(|name| Some(Found::Large(name)));
        }
        match values::large_map(entry) {
            Some(map) if self.is_empty(map)? => Ok(None),
            _ => Err(WRONG_TYPE),
        }
    }

    /// The bytes of a string to store.
    pub fn text_of(&mut self, new: NewText<'_>) -> Result<Text, Failure> {
        match new {
            NewText::Bytes(bytes) => Ok(Text::Bytes(bytes.to_vec())),
            NewText::Large(value) => value.view(self.nodes())?.map(Text::View).ok_or(TOO_LATE),
        }
    }

    /// Stores a string of any length, replacing any other value. To be called in a transaction.
    pub fn put_text(
        &mut self,
        key: &[u8],
        expires_ms: u64,
        new: NewText<'_>,
    ) -> Result<(), Failure> {
        let built;
        let value = match new {
            NewText::Bytes(bytes) if self.strings.is_ordinary(key, bytes.len()) => {
                return self.put(key, Form { kind: ValueKind::STRING, expires_ms }, bytes);
            }
            NewText::Bytes(bytes) => {
                built = LargeValue::build(&self.strings, key, &[Part::Bytes(bytes)])?;
                &built
            }
            NewText::Large(value) => value,
        };
        if value.key() != key {
            // The sweep asks the value's key whether it names the value.
            return Err(said("ERR a string has arrived for another key: report this as a defect"));
        }
        let name = value.publish(self.nodes())?;
        // The sweep, which has found the string unnamed for long, may have deleted the marker: then
        // it frees the string.
        if !self.nodes().delete(value.marker().as_ref())? {
            return Err(TOO_LATE);
        }
        self.note_stored(value);
        self.change_entry(key, |_, made| {
            made.extend_from_slice(&name.encode());
            Ok((EntryChange::Put(Form { kind: LARGE_STRING, expires_ms }), ()))
        })
    }
}

impl Found {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Large(name) => usize::try_from(name.len).unwrap_or(usize::MAX),
        }
    }
}

/// The sweep has freed a string that was not named in time.
const TOO_LATE: Failure =
    said("ERR nothing was changed: storing the string took too long; try again");
