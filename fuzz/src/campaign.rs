//! Runs targets over their corpus and over mutations of it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rackpool_sync::SplitMix64;

use crate::Target;

/// No input of a few KiB takes a target this long: it hangs.
const HANGS: Duration = Duration::from_secs(20);
/// The longest input that mutation makes.
const LONGEST: usize = 2048;
/// Numbers at which bounds tend to be wrong.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    7,
    63,
    64,
    0xff,
    0x1000,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    1 << 63,
    u64::MAX,
];

/// The inputs of a target's corpus with their names, in the order of the names.
pub fn corpus(target: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut inputs = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        inputs.push((entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?));
    }
    inputs.sort();
    Ok(inputs)
}

/// Runs a target on an input; if it panics, the input is written to the file that the message
/// names.
pub fn run(target: Target, input: &[u8]) {
    let kept = CrashInput { target: target.name, input };
    (target.run)(input);
    drop(kept);
}

/// Writes its input to a file when it is dropped by a panic.
struct CrashInput<'a> {
    target: &'static str,
    input: &'a [u8],
}

impl Drop for CrashInput<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            match keep(self.target, self.input) {
                Ok(path) => eprintln!("{}: the input is kept in {}", self.target, path.display()),
                Err(error) => eprintln!("{}: can't keep {:?}: {error}", self.target, self.input),
            }
        }
    }
}

fn keep(target: &str, input: &[u8]) -> io::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(target);
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{:016x}", xxhash_rust::xxh3::xxh3_64(input)));
    fs::write(&path, input)?;
    Ok(path)
}

/// An endless sequence of inputs, mutated from a corpus; the same for the same seed.
#[derive(Debug)]
pub struct Mutations {
    inputs: Vec<Vec<u8>>,
    random: SplitMix64,
}

impl Mutations {
    /// Mutations of these inputs.
    #[must_use]
    pub fn new(inputs: Vec<Vec<u8>>, seed: u64) -> Self {
        Self { inputs, random: SplitMix64::new(seed) }
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.random.draw() % (end.max(1) as u64)).unwrap_or(0)
    }

    fn bytes(&mut self, longest: usize) -> Vec<u8> {
        let length = self.below(longest) + 1;
        (0..length).map(|_| self.random.draw().to_le_bytes()[0]).collect()
    }

    /// The next input.
    pub fn input(&mut self) -> Vec<u8> {
        let mut input = match self.below(8) {
            0 => self.bytes(512),
            _ => {
                let at = self.below(self.inputs.len());
                self.inputs.get(at).cloned().unwrap_or_default()
            }
        };
        for _ in 0..=self.below(6) {
            self.mutate(&mut input);
        }
        input.truncate(LONGEST);
        input
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        let length = self.below(32).min(input.len() - at);
        match self.below(8) {
            0 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << (self.random.draw() % 8);
                }
            }
            1 => {
                let bytes = self.bytes(1);
                input.splice(at..at + length.min(1), bytes);
            }
            2 => {
                let bytes = self.bytes(24);
                input.splice(at..at, bytes);
            }
            3 => drop(input.drain(at..at + length)),
            4 => {
                let copy = input[at..at + length].to_vec();
                let to = self.below(input.len() + 1);
                input.splice(to..to, copy);
            }
            5 | 6 => {
                let edge = EDGES[self.below(EDGES.len())].wrapping_add(self.random.draw() % 3);
                let width = [1, 2, 4, 8][self.below(4)];
                let end = (at + width).min(input.len());
                input.splice(at..end, edge.to_le_bytes()[..width].iter().copied());
            }
            // Ends with the end of another input.
            _ => {
                let other = self.below(self.inputs.len());
                let from = self.below(self.inputs.get(other).map_or(0, Vec::len) + 1);
                input.truncate(at);
                if let Some(other) = self.inputs.get(other) {
                    input.extend_from_slice(&other[from..]);
                }
            }
        }
    }
}

/// Runs a target on mutations of its corpus for a time; returns the number of inputs. A panic ends
/// the campaign and a hang ends the process; in both cases the input is written to a file.
pub fn campaign(target: Target, time: Duration, seed: u64) -> io::Result<u64> {
    let inputs = corpus(target.name)?.into_iter().map(|(_, input)| input).collect();
    let mut mutations = Mutations::new(inputs, seed);
    let current = Arc::new(Mutex::new((Vec::new(), Instant::now())));
    watch(target, &current);
    let (begin, mut count) = (Instant::now(), 0);
    while begin.elapsed() < time {
        let input = mutations.input();
        *current.lock().unwrap_or_else(PoisonError::into_inner) = (input.clone(), Instant::now());
        run(target, &input);
        count += 1;
    }
    Ok(count)
}

fn watch(target: Target, current: &Arc<Mutex<(Vec<u8>, Instant)>>) {
    let current = Arc::downgrade(current);
    std::thread::spawn(move || {
        while let Some(current) = current.upgrade() {
            let (input, since) = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if since.elapsed() > HANGS {
                let kept = keep(target.name, &input).unwrap_or_default();
                eprintln!("{} hangs; the input is kept in {}", target.name, kept.display());
                std::process::exit(1);
            }
            drop(current);
            std::thread::sleep(Duration::from_secs(1));
        }
    });
}
