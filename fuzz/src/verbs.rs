//! Bytes that a peer of the verbs fabric sends.

use rackpool_fabric_verbs::fuzzing::Account;

/// The most messages that may be under way.
const WINDOW: u64 = 128;

/// Acknowledged message numbers never make room for more than was sent.
pub fn verbs(bytes: &[u8]) {
    let mut account = Account::default();
    let (mut sent, mut taken) = (0_u64, 0_u64);
    for step in bytes.chunks_exact(5) {
        match step {
            [0, count, large, ..] => {
                for _ in 0..*count {
                    sent += u64::from(account.send(large & 1 == 1));
                }
            }
            [_, number @ ..] => {
                let number = u32::from_le_bytes(number.try_into().unwrap());
                if account.told(number).is_err() {
                    return;
                }
                taken += u64::from(number >> 16).wrapping_sub(taken) & 0xffff;
            }
            [] => {}
        }
        assert!(taken <= sent && sent - taken <= WINDOW, "{taken} of {sent} taken");
    }
}
