//! Numbers of transfers between racks. A number says whose transfer it is, because one completion
//! queue reports all of them.

/// The user of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferUser {
    /// A client's read or write.
    Client,
    /// The copy of a page that moves.
    Swap,
    /// The copy of a page that is kept as a replica.
    Replica,
}

impl TransferUser {
    /// Returns the user of the transfer with this number.
    pub(super) const fn of(number: u64) -> Self {
        match number & 3 {
            0 => Self::Client,
            1 => Self::Swap,
            _ => Self::Replica,
        }
    }
}

/// Draws transfer numbers, in growing order.
#[derive(Debug, Default)]
pub(super) struct TransferNumbers {
    drawn: u64,
}

impl TransferNumbers {
    /// Returns the number of a new transfer.
    pub(super) const fn next(&mut self, user: TransferUser) -> u64 {
        self.drawn += 1;
        let user = match user {
            TransferUser::Client => 0,
            TransferUser::Swap => 1,
            TransferUser::Replica => 2,
        };
        self.drawn << 2 | user
    }

    /// Returns how many numbers were drawn.
    pub(super) const fn drawn(&self) -> u64 {
        self.drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_its_user_and_later_numbers_are_larger() {
        let mut numbers = TransferNumbers::default();
        let users = [TransferUser::Replica, TransferUser::Client, TransferUser::Swap];
        let drawn = users.map(|user| numbers.next(user));
        assert_eq!(drawn.map(TransferUser::of), users);
        assert!(drawn.is_sorted() && numbers.drawn() == 3);
    }
}
