//! Non-blocking reads of the terminal's keys.

use std::io::{self, IsTerminal};

use nix::sys::termios::{
    LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr,
};
use nix::unistd::read;

/// The meaning of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Left,
    Right,
    Up,
    Down,
}

/// The terminal at standard input in raw mode; dropping it restores the mode.
pub(super) struct Keys {
    before: Termios,
}

impl Keys {
    /// Returns `None` if standard input is no terminal; it is never read then.
    pub(super) fn open() -> Option<Self> {
        let input = io::stdin();
        if !input.is_terminal() {
            return None;
        }
        let before = tcgetattr(&input).ok()?;
        let mut wanted = before.clone();
        wanted.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
        // A read returns immediately with the bytes that are there.
        wanted.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
        wanted.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
        tcsetattr(&input, SetArg::TCSANOW, &wanted).ok()?;
        Some(Self { before })
    }

    /// Returns the keys pressed since the last call.
    pub(super) fn pressed(&self) -> Vec<Key> {
        let mut bytes = [0; 64];
        // A read error counts as no key.
        let count = read(io::stdin(), &mut bytes).unwrap_or(0);
        parse(&bytes[..count])
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, &self.before);
    }
}

fn parse(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((first, rest)) = bytes.split_first() {
        bytes = rest;
        match (first, rest) {
            (b'q' | b'Q', _) => keys.push(Key::Quit),
            (0x1b, [b'[' | b'O', letter, others @ ..]) => {
                bytes = others;
                keys.extend(match letter {
                    b'A' => Some(Key::Up),
                    b'B' => Some(Key::Down),
                    b'C' => Some(Key::Right),
                    b'D' => Some(Key::Left),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_of_both_modes_and_q_are_keys_and_nothing_else_is() {
        assert_eq!(
            parse(b"\x1b[A\x1bOBx\x1b[C\x1b[Dq"),
            [Key::Up, Key::Down, Key::Right, Key::Left, Key::Quit]
        );
        assert_eq!(parse(b"\x1b\x1b[\x00\xff"), []);
    }
}
