//! Recorded accesses as text, and their replay through a machine.

use crate::machine::{DmaPath, LINE_BYTES, Machine, MachineOptions};
use crate::mask::WayMask;
use crate::outcome::Counters;
use crate::{OptionsError, ParseError};

/// The most accesses of one trace.
const MAX_ACCESSES: u64 = 10_000_000;

/// The most lines that the accesses of one trace touch, repetitions included.
const MAX_TOUCHED_LINES: u64 = 200_000_000;

/// The most bytes of one access.
const MAX_ACCESS_BYTES: u64 = 1 << 30;

/// The most characters of the input that an error message quotes.
const QUOTED_CHARS: usize = 40;

/// First field of the optional header.
const HEADER: &str = "nanoseconds";

/// Who accesses memory, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// A card writes; partly covered lines count as whole lines.
    DeviceWrite,
    /// A card reads.
    DeviceRead,
    /// A core reads.
    CoreRead,
    /// A core writes.
    CoreWrite,
}

/// One access of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Time (ns). Only the order of accesses matters.
    pub time_ns: u64,
    /// Who accesses memory, and how.
    pub kind: AccessKind,
    /// The core that accesses memory; not used for device accesses.
    pub core: u8,
    /// First byte.
    pub address: u64,
    /// Length (bytes), at least 1.
    pub bytes: u64,
}

impl Access {
    /// The lines that the access touches: first and last byte address, divided by 64.
    fn lines(&self) -> std::ops::RangeInclusive<u64> {
        let last = self.address.saturating_add(self.bytes.saturating_sub(1));
        self.address / LINE_BYTES..=last / LINE_BYTES
    }
}

/// A trace of accesses, ordered by time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    accesses: Vec<Access>,
}

impl Accesses {
    /// A trace of these accesses.
    ///
    /// # Errors
    /// Returns an error if an access is earlier than the one before it, or if they are too many or
    /// too long. The number of the access takes the place of a line's.
    pub fn new(accesses: Vec<Access>) -> Result<Self, ParseError> {
        let mut checked = Self { accesses: Vec::with_capacity(accesses.len().min(1 << 16)) };
        let mut touched_lines = 0;
        for (number, access) in (1..).zip(accesses) {
            checked.push(number, access, &mut touched_lines)?;
        }
        Ok(checked)
    }

    /// Appends an access, if it is in order and within the limits.
    fn push(
        &mut self,
        line: usize,
        access: Access,
        touched_lines: &mut u64,
    ) -> Result<(), ParseError> {
        if self.accesses.last().is_some_and(|last| last.time_ns > access.time_ns) {
            return Err(ParseError::TimeGoesBack { line, found: access.time_ns });
        }
        *touched_lines = touched_lines.saturating_add(access.bytes.div_ceil(LINE_BYTES));
        let too_long = |what, limit| ParseError::TooLong { line, what, limit };
        if self.accesses.len() as u64 >= MAX_ACCESSES {
            return Err(too_long("accesses", MAX_ACCESSES));
        }
        if *touched_lines > MAX_TOUCHED_LINES {
            return Err(too_long("touched cache lines", MAX_TOUCHED_LINES));
        }
        self.accesses.push(access);
        Ok(())
    }

    /// Parses a trace, one access a line:
    /// `nanoseconds,device-write|device-read|core-read|core-write,core,address,bytes`.
    ///
    /// Addresses are decimal, or hexadecimal after `0x`. Text after `#` is a comment. The first
    /// line may be a header that starts with `nanoseconds`.
    ///
    /// # Errors
    /// Returns an error that names the first line that is not valid.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut accesses = Self::default();
        let mut touched_lines = 0;
        let mut header_allowed = true;
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.split('#').next().unwrap_or_default().trim();
            if text.is_empty() {
                continue;
            }
            let is_header = text.split(',').next().is_some_and(|field| field.trim() == HEADER);
            if std::mem::take(&mut header_allowed) && is_header {
                continue;
            }
            let access = parse_access(line, text)?;
            accesses.push(line, access, &mut touched_lines)?;
        }
        Ok(accesses)
    }

    /// The accesses, ordered by time.
    #[must_use]
    pub fn as_slice(&self) -> &[Access] {
        &self.accesses
    }

    /// Number of cores that the replay needs: the highest core number plus one.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.accesses.iter().map(|access| usize::from(access.core) + 1).max().unwrap_or(1)
    }
}

/// Sends recorded accesses through cold caches and returns what they counted.
///
/// Cores evict into all LLC ways; device writes take `path`.
///
/// # Errors
/// Returns an error if an option of the machine is not valid.
pub fn replay(
    options: &MachineOptions,
    path: DmaPath,
    accesses: &Accesses,
) -> Result<Counters, OptionsError> {
    let masks = vec![WayMask::all(options.llc_ways); accesses.cores()];
    let mut machine = Machine::new(options, &masks, 1)?;
    for access in accesses.as_slice() {
        let core = usize::from(access.core);
        for line in access.lines() {
            match access.kind {
                AccessKind::DeviceWrite => machine.device_write(line, 0, path),
                AccessKind::DeviceRead => machine.device_read(line, 0),
                AccessKind::CoreRead => machine.core_access(core, line, false, 0),
                AccessKind::CoreWrite => machine.core_access(core, line, true, 0),
            };
        }
    }
    Ok(machine.counters(0))
}

fn parse_access(line: usize, text: &str) -> Result<Access, ParseError> {
    // One field more than allowed is enough to reject a line.
    let fields: Vec<&str> = text.splitn(6, ',').map(str::trim).collect();
    let &[time_ns, kind, core, address, bytes] = fields.as_slice() else {
        return Err(ParseError::Fields { line, found: text.split(',').count() });
    };
    let access = Access {
        time_ns: number(line, "nanoseconds", time_ns, 0..=u64::MAX, "a whole number of ns")?,
        kind: parse_kind(line, kind)?,
        core: number(line, "core", core, 0..=255, "a core number from 0 to 255")?
            .try_into()
            .unwrap_or(u8::MAX),
        address: number(line, "address", address, 0..=u64::MAX, ADDRESS_ADVICE)?,
        bytes: number(line, "bytes", bytes, 1..=MAX_ACCESS_BYTES, "1 to 1073741824 bytes")?,
    };
    if access.address.checked_add(access.bytes - 1).is_none() {
        let advice = "an access that ends at 2^64 or below";
        return Err(ParseError::Number { line, field: "address", found: quote(address), advice });
    }
    Ok(access)
}

const ADDRESS_ADVICE: &str = "a 64-bit address, decimal or hexadecimal after 0x";

fn parse_kind(line: usize, text: &str) -> Result<AccessKind, ParseError> {
    match text {
        "device-write" => Ok(AccessKind::DeviceWrite),
        "device-read" => Ok(AccessKind::DeviceRead),
        "core-read" => Ok(AccessKind::CoreRead),
        "core-write" => Ok(AccessKind::CoreWrite),
        _ => Err(ParseError::Kind { line, found: quote(text) }),
    }
}

/// Parses a number in `range`; only addresses may be hexadecimal.
fn number(
    line: usize,
    field: &'static str,
    text: &str,
    range: std::ops::RangeInclusive<u64>,
    advice: &'static str,
) -> Result<u64, ParseError> {
    let hex = text.strip_prefix("0x").filter(|_| field == "address");
    let (digits, radix) = hex.map_or((text, 10), |digits| (digits, 16));
    // `from_str_radix` accepts a sign, which the format does not have.
    let parsed = u64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'));
    parsed.filter(|value| range.contains(value)).ok_or_else(|| ParseError::Number {
        line,
        field,
        found: quote(text),
        advice,
    })
}

fn quote(text: &str) -> String {
    text.chars().take(QUOTED_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "nanoseconds,kind,core,address,bytes\n\
        # a packet of 100 B that starts in the middle of a line\n\
        0,device-write,0,0x1020,100\r\n\
        5 , core-write , 3 , 4128 , 14 # its header\n\
        \n\
        9,device-read,0,0x1020,100\n";

    #[test]
    fn a_trace_goes_through_the_caches() {
        let accesses = Accesses::parse(TRACE).unwrap();
        assert_eq!((accesses.as_slice().len(), accesses.cores()), (3, 4));
        let counters = replay(&MachineOptions::default(), DmaPath::Ddio, &accesses).unwrap();
        let expected = Counters {
            device_write_misses: 3,
            core_llc_hits: 1,
            device_read_hits: 3,
            ..Counters::default()
        };
        assert_eq!(counters, expected);
        let bypassed = replay(&MachineOptions::default(), DmaPath::DdioDisabled, &accesses);
        assert_eq!(bypassed.unwrap().device_writes_bypassed, 3);
    }

    #[test]
    fn errors_name_the_line_and_what_to_write() {
        let cases = [
            ("1,core-read,0,0", "line 1: found 4 fields; write nanoseconds,"),
            ("1,core-read,0,0,64,7,8", "line 1: found 7 fields"),
            ("#\n1,core-raed,0,0,64", "line 2: unknown access \"core-raed\"; write device-write"),
            ("-1,core-read,0,0,64", "line 1: nanoseconds \"-1\" is not valid; write a whole"),
            ("1,core-read,256,0,64", "line 1: core \"256\" is not valid; write a core number"),
            ("1,core-read,0,0xg,64", "line 1: address \"0xg\" is not valid; write a 64-bit"),
            ("1,core-read,0,+5,64", "line 1: address \"+5\" is not valid"),
            ("1,core-read,0,0x,64", "line 1: address \"0x\" is not valid"),
            ("1,core-read,0,0,0", "line 1: bytes \"0\" is not valid; write 1 to"),
            ("1,core-read,0,0xffffffffffffffff,2", "write an access that ends at 2^64"),
            ("2,core-read,0,0,1\n1,core-read,0,0,1", "line 2: 1 ns is before the line above"),
            ("nanoseconds\nnanoseconds", "line 2: found 1 fields"),
        ];
        for (text, expected) in cases {
            let error = Accesses::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?} gave {error:?}");
        }
    }

    #[test]
    fn long_traces_and_long_fields_are_bounded() {
        let access = "0,device-read,0,0,1073741824\n";
        let error = Accesses::parse(&access.repeat(20)).unwrap_err();
        assert!(matches!(error, ParseError::TooLong { line: 12, .. }), "{error}");
        let error = Accesses::parse(&format!("0,{},0,0,1", "é".repeat(100_000))).unwrap_err();
        assert!(error.to_string().len() < 300);
    }

    #[test]
    fn accesses_are_as_a_trace_of_them() {
        let parsed = Accesses::parse(TRACE).unwrap();
        assert_eq!(Accesses::new(parsed.as_slice().to_vec()), Ok(parsed.clone()));
        let backwards: Vec<Access> = parsed.as_slice().iter().rev().copied().collect();
        assert!(matches!(Accesses::new(backwards), Err(ParseError::TimeGoesBack { line: 2, .. })));
    }

    #[test]
    fn the_last_line_of_the_address_space_is_valid() {
        let text = "0,device-write,0,0xffffffffffffffc0,64";
        let accesses = Accesses::parse(text).unwrap();
        let counters = replay(&MachineOptions::default(), DmaPath::Ddio, &accesses).unwrap();
        assert_eq!(counters.device_writes(), 1);
    }

    #[test]
    fn random_text_gives_an_error_or_a_trace() {
        let alphabet: Vec<char> = "0123456789xaf,,,#\n -+é device-readcore-write".chars().collect();
        let mut rng = crate::rng::Rng::new(3, 0);
        for _ in 0..5000 {
            let text: String = (0..60)
                .map(|_| alphabet[crate::cache::index(rng.below(alphabet.len() as u64))])
                .collect();
            let _parsed = Accesses::parse(&text);
        }
    }
}
