//! The functions of a program that belong to the product, read from its symbol table.

use std::path::Path;

/// The functions of one program that belong to this project.
#[derive(Debug)]
pub struct Symbols {
    /// Sorted by their first byte.
    functions: Vec<Function>,
}

#[derive(Debug)]
struct Function {
    start: u64,
    end: u64,
    name: String,
}

const SYMBOL_TABLE: u64 = 2;
const FUNCTION: u64 = 2;

/// A little-endian number of `len` bytes in the file; 0 beyond its end.
fn number(file: &[u8], at: u64, len: usize) -> u64 {
    let start = usize::try_from(at).unwrap_or(usize::MAX);
    let bytes = start.checked_add(len).and_then(|end| file.get(start..end)).unwrap_or(&[]);
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Symbols {
    /// Reads the symbols of a 64-bit ELF file.
    #[must_use]
    pub fn of(program: &Path) -> Self {
        let file = std::fs::read(program).expect("a readable program");
        let (sections, size) = (number(&file, 0x28, 8), number(&file, 0x3a, 2));
        let section = |index: u64| sections + index * size;
        let mut functions = Vec::new();
        for index in 0..number(&file, 0x3c, 2) {
            if number(&file, section(index) + 4, 4) != SYMBOL_TABLE {
                continue;
            }
            let names = number(&file, section(number(&file, section(index) + 0x28, 4)) + 0x18, 8);
            let (start, len) =
                (number(&file, section(index) + 0x18, 8), number(&file, section(index) + 0x20, 8));
            for symbol in (start..start + len).step_by(24) {
                let name = name(&file, names + number(&file, symbol, 4));
                if number(&file, symbol + 4, 1) & 15 != FUNCTION || !name.contains("rackpool_") {
                    continue;
                }
                let first = number(&file, symbol + 8, 8);
                let end = first + number(&file, symbol + 16, 8);
                functions.push(Function { start: first, end, name });
            }
        }
        functions.sort_by_key(|function| function.start);
        assert!(!functions.is_empty(), "{} has no symbols", program.display());
        Self { functions }
    }

    /// The function that contains the instruction at this offset in the program.
    #[must_use]
    pub fn function(&self, at: u64) -> Option<&str> {
        let index = self.functions.partition_point(|function| function.start <= at);
        let function = self.functions.get(index.checked_sub(1)?)?;
        (at < function.end).then_some(function.name.as_str())
    }

    /// The name of that function, or `elsewhere`.
    #[must_use]
    pub fn name(&self, at: u64) -> &str {
        self.function(at).unwrap_or("elsewhere")
    }

    /// Returns true if an instruction belongs to this project and not to its tests.
    #[must_use]
    pub fn is_product(&self, at: u64) -> bool {
        self.function(at).is_some_and(|name| !name.contains("rackpool_tests"))
    }
}

fn name(file: &[u8], at: u64) -> String {
    let start = usize::try_from(at).unwrap_or(usize::MAX);
    let bytes = file.get(start..).unwrap_or(&[]).iter().take_while(|byte| **byte != 0).copied();
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_of_this_program_are_found() {
        let symbols = Symbols::of(&std::env::current_exe().expect("this program"));
        let of = symbols.functions.iter().find(|f| f.name.contains("symbols")).expect("this file");
        assert_eq!(symbols.function(of.start), Some(of.name.as_str()));
        assert_ne!(symbols.function(of.end), Some(of.name.as_str()));
        assert!(!symbols.is_product(of.start) && !symbols.is_product(0));
        let function = Function { start: 16, end: 32, name: "rackpool_shm::file::open".into() };
        let product = Symbols { functions: vec![function] };
        assert!(product.is_product(16) && product.is_product(31));
        assert!(!product.is_product(15) && !product.is_product(32));
    }
}
