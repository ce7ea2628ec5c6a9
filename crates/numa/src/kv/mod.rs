//! The key-value workload: a server like memcached over RDMA (Jose et al., "Memcached Design on
//! High Performance RDMA Capable Interconnects", ICPP 2011, as Nelson and Palmieri describe it).
//!
//! A request is a message. For a get the server answers where the value lies and the client reads
//! it one-sided; for a set the server reads the value one-sided from the client's memory. 90 % of
//! the requests are gets. One thread of the server handles all requests.

mod client;
mod message;
mod server;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use client::KeyValueClient;
pub(crate) use server::{KeyValueServer, Pace};

/// Bytes of a key and its value.
pub const PAIR_BYTES: u32 = 67;
/// Bytes of a value.
const VALUE_BYTES: u32 = 64;
/// Bytes of a key.
const KEY_BYTES: usize = 3;
/// Keys of one connection; no two connections share a key.
pub(crate) const KEYS: u32 = 1000;
/// Gets among the requests, in percent.
const GET_PERCENT: u64 = 90;

const _: () = assert!(VALUE_BYTES as usize + KEY_BYTES == PAIR_BYTES as usize);

/// A key: three characters of `0-9A-Za-z`.
type Key = [u8; KEY_BYTES];
/// A value.
type Value = [u8; VALUE_BYTES as usize];

/// The characters of keys and values.
const LETTERS: [u8; 62] = *b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The key with a number; numbers below 62 cubed have different keys.
fn key(number: u32) -> Key {
    let letter = |rest: u32| LETTERS[rest as usize % LETTERS.len()];
    [letter(number), letter(number / 62), letter(number / (62 * 62))]
}

/// A random value.
fn value(random: &mut rackpool_sync::SplitMix64) -> Value {
    let mut value = [0; VALUE_BYTES as usize];
    for part in value.chunks_mut(8) {
        for (letter, byte) in part.iter_mut().zip(random.draw().to_le_bytes()) {
            *letter = LETTERS[usize::from(byte) % LETTERS.len()];
        }
    }
    value
}

/// The value that the key with this number has before anything is stored.
fn first_value(number: u32) -> Value {
    value(&mut rackpool_sync::SplitMix64::new(u64::from(number)))
}
