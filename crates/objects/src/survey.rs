use std::collections::{BinaryHeap, HashMap};
use std::mem;
use std::time::{Duration, Instant};

use rackpool_client::GlobalAddr;
use rackpool_kv::EntryPlace;

use crate::error::StoreError;
use crate::layout::head::{Head, HeadLayout};
use crate::layout::keys::Keys;
use crate::protocol::Source;
use crate::store::{PlacedHead, Store};

/// The most candidates that a survey keeps.
const CANDIDATES: usize = 1024;
/// The shortest time between two surveys that look whether there is room, and the least multiple of
/// a survey's duration.
const AGE: Duration = Duration::from_secs(1);
const REST: u32 = 20;

/// An object or a replica of the own rack that may be evicted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// When it was last used, in milliseconds since 1970.
    pub(crate) last_use_ms: u64,
    pub(crate) has_expired: bool,
    pub(crate) source: Source,
    pub(crate) keys: Keys,
    pub(crate) object: PlacedHead,
    /// The memory of head and extents.
    pub(crate) bytes: u64,
}

/// The memory of a store in the own rack, and what may be evicted of it.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The memory at the last survey, and what this program has created and evicted since.
    pub(crate) bytes: u64,
    /// The end and the duration of the last survey.
    last: Option<(Instant, Duration)>,
    /// The most recently used ones first.
    pub(crate) candidates: Vec<Candidate>,
    /// The last uses, perhaps in other racks, of objects that this program wanted to evict: by
    /// address and version, in milliseconds since 1970.
    later_uses: HashMap<(GlobalAddr, [u8; 12]), u64>,
    /// When this program last deleted expired objects.
    pub(crate) swept: Option<Instant>,
    /// The end and the duration of its last sweep of files.
    pub(crate) files_swept: Option<(Instant, Duration)>,
}

impl Survey {
    /// Whether a new survey may find something else.
    pub(crate) fn is_old(&self) -> bool {
        self.last.is_none_or(|(end, took)| end.elapsed() >= AGE.max(REST * took))
    }

    /// Takes up to `count` of the candidates that were unused for longest and that `may_go`.
    pub(crate) fn take(
        &mut self,
        count: usize,
        may_go: impl Fn(&Candidate) -> bool,
    ) -> Vec<Candidate> {
        let mut taken = Vec::new();
        for at in (0..self.candidates.len()).rev() {
            if taken.len() == count {
                break;
            }
            if may_go(&self.candidates[at]) {
                taken.push(self.candidates.remove(at));
            }
        }
        taken
    }

    /// Notes the last use of an object, which its head may not know: it may be in another rack.
    pub(crate) fn note_use(&mut self, object: &PlacedHead, at_ms: u64) {
        self.later_uses.insert(key_of(&object.place), at_ms);
    }

    /// Accounts for what was created.
    pub(crate) const fn grow(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Accounts for what was evicted.
    pub(crate) const fn shrink(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Store {
    /// Looks at all objects and replicas of the store in the own rack. Of those that `may_go`,
    /// keeps as candidates those that were unused for longest.
    pub(crate) fn survey(
        &self,
        survey: &mut Survey,
        may_go: impl Fn(&Candidate) -> bool,
    ) -> Result<(), StoreError> {
        let (begin, oldest_alive) = (Instant::now(), self.oldest_alive()?);
        let pool = self.pool();
        self.open_replicas_if_any()?;
        let is_here = |addr| pool.is_in_own_part(addr).unwrap_or(false);
        let (mut bytes, mut heap) = (0_u64, BinaryHeap::new());
        let (later_uses, mut still) = (mem::take(&mut survey.later_uses), HashMap::new());
        let mut look = |source: Source, key: &[u8], value: &[u8], place: EntryPlace| {
            let keys = Keys::id_in(key).and_then(|id| Keys::of(id).ok());
            let (Some(keys), Some(head)) = (keys, Head::decode(value)) else { return };
            // It takes no memory but that of its entry.
            if head.is_spilled() {
                return;
            }
            let layout = HeadLayout::of(keys.id_len());
            // Its page may have been freed since.
            let Ok(words) = self.words_of(place.addr, layout) else { return };
            // The program that brings it has accounted for it, and may have allocated nothing yet.
            let is_brought = source == Source::Replicas && words.is_brought();
            if is_brought {
                return;
            }
            let memory = layout.memory_for(head.len(), pool.page_bytes());
            bytes = bytes.saturating_add(memory);
            let (mut last_use_ms, has_expired) =
                (words.last_use_ms, head.created_ms < oldest_alive);
            if let Some((key, at_ms)) = later_uses.get_key_value(&key_of(&place)) {
                still.insert(*key, *at_ms);
                last_use_ms = last_use_ms.max(*at_ms);
            }
            let object = PlacedHead { place, head };
            let candidate =
                Candidate { last_use_ms, has_expired, source, keys, object, bytes: memory };
            if may_go(&candidate) {
                heap.push(ByUse(candidate));
            }
            if heap.len() > CANDIDATES {
                heap.pop();
            }
        };
        self.with(|handles| {
            let objects = &mut handles.objects;
            objects.for_each_placed(is_here, |key, value, place| {
                look(Source::Objects, key, value, place);
            })?;
            if let Some(replicas) = &mut handles.replicas {
                replicas.for_each_placed(is_here, |key, value, place| {
                    look(Source::Replicas, key, value, place);
                })?;
            }
            Ok(())
        })?;
        (survey.bytes, survey.later_uses) = (bytes, still);
        // In the order of the uses, the last one first.
        let sorted = heap.into_sorted_vec().into_iter().rev();
        survey.candidates = sorted.map(|ByUse(candidate)| candidate).collect();
        survey.last = Some((Instant::now(), begin.elapsed()));
        Ok(())
    }
}

fn key_of(place: &EntryPlace) -> (GlobalAddr, [u8; 12]) {
    (place.addr, place.version.to_bytes())
}

/// Candidates in the order in which they are evicted: expired ones, then by their last use; of
/// those used at the same time replicas first, since their objects stay.
#[derive(Debug)]
struct ByUse(Candidate);

impl ByUse {
    fn rank(&self) -> (bool, u64, bool, u64) {
        let Candidate { last_use_ms, has_expired, source, object, .. } = &self.0;
        (!*has_expired, *last_use_ms, *source == Source::Objects, object.place.addr.raw())
    }
}

impl Ord for ByUse {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for ByUse {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByUse {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByUse {}
