/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of docs/design/plasma.md")]
pub enum MessageKind {
    Disconnect = 0,
    CreateRequest,
    CreateReply,
    CreateAndSealRequest,
    CreateAndSealReply,
    AbortRequest,
    AbortReply,
    SealRequest,
    SealReply,
    GetRequest,
    GetReply,
    ReleaseRequest,
    ReleaseReply,
    DeleteRequest,
    DeleteReply,
    ContainsRequest,
    ContainsReply,
    ListRequest,
    ListReply,
    ConnectRequest,
    ConnectReply,
    EvictRequest,
    EvictReply,
    SubscribeRequest,
    UnsubscribeRequest,
    DataRequest,
    DataReply,
    Notification,
    SetOptionsRequest,
    SetOptionsReply,
    DebugStringRequest,
    DebugStringReply,
    CreateAndSealBatchRequest,
    CreateAndSealBatchReply,
    RefreshLruRequest,
    RefreshLruReply,
}

impl MessageKind {
    /// All types, in the order of their codes.
    pub const ALL: [Self; 36] = [
        Self::Disconnect,
        Self::CreateRequest,
        Self::CreateReply,
        Self::CreateAndSealRequest,
        Self::CreateAndSealReply,
        Self::AbortRequest,
        Self::AbortReply,
        Self::SealRequest,
        Self::SealReply,
        Self::GetRequest,
        Self::GetReply,
        Self::ReleaseRequest,
        Self::ReleaseReply,
        Self::DeleteRequest,
        Self::DeleteReply,
        Self::ContainsRequest,
        Self::ContainsReply,
        Self::ListRequest,
        Self::ListReply,
        Self::ConnectRequest,
        Self::ConnectReply,
        Self::EvictRequest,
        Self::EvictReply,
        Self::SubscribeRequest,
        Self::UnsubscribeRequest,
        Self::DataRequest,
        Self::DataReply,
        Self::Notification,
        Self::SetOptionsRequest,
        Self::SetOptionsReply,
        Self::DebugStringRequest,
        Self::DebugStringReply,
        Self::CreateAndSealBatchRequest,
        Self::CreateAndSealBatchReply,
        Self::RefreshLruRequest,
        Self::RefreshLruReply,
    ];

    /// The code of this type in a frame.
    #[must_use]
    pub const fn code(self) -> i64 {
        self as i64
    }

    /// The type of a code.
    #[must_use]
    pub fn of(code: i64) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    /// Returns true if the message may hold the bytes of objects.
    #[must_use]
    pub const fn carries_data(self) -> bool {
        matches!(self, Self::CreateAndSealRequest | Self::CreateAndSealBatchRequest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_types_are_each_others_inverse() {
        for (code, kind) in (0_i64..).zip(MessageKind::ALL) {
            assert_eq!((kind.code(), MessageKind::of(code)), (code, Some(kind)));
        }
        assert_eq!([-1, 36, i64::MAX, i64::MIN].map(MessageKind::of), [None; 4]);
    }
}
