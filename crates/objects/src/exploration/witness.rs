/// What was true during the present call of a program.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Witness {
    pub(super) is_begun: bool,
    /// The bytes of the objects that were linked at some time during the call, as bits.
    pub(super) linked: u64,
    /// Whether no object was linked at some time during the call.
    pub(super) was_absent: bool,
    /// The objects that this call has removed.
    pub(super) removed: u32,
    /// Whether an entry could not be read at some time during the call, and whether the object was
    /// lost.
    pub(super) has_trouble: bool,
    pub(super) has_lost: bool,
    /// Whether the object was in a file at some time during the call.
    pub(super) was_spilled: bool,
}

/// What a call has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Got(Option<u64>),
    Deleted(bool),
    Put(bool),
    Nothing,
    /// An entry could not be read. A get fails only if that is the object.
    Failed {
        is_get: bool,
    },
    /// The object is in a file of another rack.
    NotRestored,
}

impl Witness {
    /// Whether a call during which this was true may return `outcome`.
    pub(super) fn allows(&self, outcome: Outcome) -> bool {
        let removed = match outcome {
            Outcome::Deleted(true) => 1,
            Outcome::Failed { .. } => self.removed,
            _ => 0,
        };
        self.removed == removed
            && match outcome {
                Outcome::Failed { is_get: true } => self.has_lost,
                Outcome::Failed { is_get: false } => self.has_trouble,
                Outcome::NotRestored => self.was_spilled,
                Outcome::Got(Some(bytes)) => self.linked >> bytes & 1 == 1,
                Outcome::Got(None) | Outcome::Deleted(false) => self.was_absent,
                Outcome::Put(false) => self.linked != 0,
                Outcome::Deleted(true) | Outcome::Put(true) | Outcome::Nothing => true,
            }
    }
}
