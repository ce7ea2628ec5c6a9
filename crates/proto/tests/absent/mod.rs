//! Parts of a rack's memory that a test does without.

/// Implements [`ObjectMemory`](rackpool_proto::exchange::ObjectMemory) without objects and clients.
macro_rules! no_objects {
    ($memory:ty) => {
        no_reservations!($memory);

        impl rackpool_proto::exchange::ObjectMemory for $memory {
            fn is_allocated(&self, _: rackpool_model::GlobalAddr) -> bool {
                false
            }
            fn may_free(
                &self,
                _: rackpool_model::GlobalAddr,
                _: Option<rackpool_model::ClientId>,
            ) -> bool {
                false
            }
            fn candidate(&self, _: u64) -> Option<rackpool_model::GlobalAddr> {
                None
            }
            fn free_frames(&self) -> u32 {
                0
            }
            fn takes(&self, _: rackpool_proto::exchange::Caller) -> bool {
                false
            }
            fn holds(
                &self,
                _: rackpool_proto::exchange::ClientThread,
                _: rackpool_model::GlobalAddr,
            ) -> bool {
                false
            }
            fn held(
                &self,
            ) -> impl Iterator<
                Item = (rackpool_proto::exchange::ClientThread, rackpool_model::GlobalAddr),
            > {
                std::iter::empty()
            }
        }
    };
}

/// Implements [`ReservationMemory`](rackpool_proto::publication::ReservationMemory) without
/// records.
macro_rules! no_reservations {
    ($memory:ty) => {
        impl rackpool_proto::publication::ReservationMemory for $memory {
            fn array_objects(
                &self,
                _: rackpool_model::ClientId,
            ) -> impl Iterator<
                Item = (rackpool_proto::exchange::ClientThread, rackpool_model::GlobalAddr),
            > {
                std::iter::empty()
            }
            fn reservations(
                &self,
                _: rackpool_model::ClientId,
            ) -> impl Iterator<Item = rackpool_proto::publication::RecordPlace> {
                std::iter::empty()
            }
            fn reservation(
                &self,
                _: rackpool_proto::publication::RecordPlace,
            ) -> rackpool_model::ReservationState {
                rackpool_model::ReservationState::Free
            }
        }
    };
}

/// Implements [`LockMemory`](rackpool_proto::lock::LockMemory) without locks.
macro_rules! no_locks {
    ($memory:ty) => {
        impl rackpool_proto::lock::LockMemory for $memory {
            fn lock_word(&self, _: rackpool_model::LockWordIndex) -> rackpool_model::LockWord {
                rackpool_model::LockWord::FREE
            }
            fn claim(&self, _: rackpool_model::ClaimId) -> Option<rackpool_model::LockClaim> {
                None
            }
            fn claims(
                &self,
            ) -> impl Iterator<Item = (rackpool_model::ClaimId, rackpool_model::LockClaim)> {
                std::iter::empty()
            }
            fn beat(&self, _: rackpool_model::ClientId) -> Option<u64> {
                None
            }
            fn is_using(&self, _: rackpool_model::ClaimId, _: rackpool_model::PageId) -> bool {
                false
            }
        }
    };
}

/// Implements [`RackMemory`](rackpool_proto::rack::RackMemory) of a rack whose pages do not move
/// and are not shared.
macro_rules! no_moves {
    ($memory:ty) => {
        no_locks!($memory);

        impl rackpool_proto::rack::RackMemory for $memory {
            fn spare(&self) -> Option<rackpool_model::FrameId> {
                None
            }
            fn free_pages(&self) -> impl Iterator<Item = rackpool_model::PageId> {
                std::iter::empty()
            }
            fn movable_pages(&self) -> impl Iterator<Item = rackpool_model::PageId> {
                std::iter::empty()
            }
            fn may_move(&self, _: rackpool_model::PageId) -> bool {
                false
            }
            fn may_share(&self, _: rackpool_model::PageId) -> bool {
                false
            }
            fn frame_for_replica(
                &self,
                _: &dyn Fn(rackpool_model::PageId) -> bool,
            ) -> Option<rackpool_model::FrameId> {
                None
            }
            fn is_short_of_frames(&self) -> bool {
                false
            }
            fn is_quiesced(
                &self,
                _: rackpool_model::FrameId,
                _: rackpool_model::Occupants,
            ) -> bool {
                true
            }
        }
    };
}
