//! Which cells of a sparse array of the client's file are free. Only this process knows: the daemon
//! reads all cells below the array's high-water mark.

use rackpool_ring::client_file::{ArrayKind, ClientFile};
use rackpool_ring::sparse_array::ARRAY_CELLS;

use crate::NoCell;

/// Cells whose memory is allocated together.
const CELLS_A_PAGE: usize = 512;

/// The free cells of an array.
#[derive(Debug)]
pub(crate) struct Cells {
    kind: ArrayKind,
    /// Cells that were in use before, the last one first.
    free: Vec<usize>,
    /// Cells from here on were never in use.
    next: usize,
}

impl Cells {
    /// The cells of an array of a new client.
    pub(crate) const fn of(kind: ArrayKind) -> Self {
        Self { kind, free: Vec::new(), next: 0 }
    }

    /// Takes a free cell, whose memory is allocated.
    pub(crate) fn take(&mut self, file: &ClientFile) -> Result<usize, NoCell> {
        if let Some(cell) = self.free.pop() {
            return Ok(cell);
        }
        if self.next == ARRAY_CELLS {
            return Err(NoCell::AllInUse { most: ARRAY_CELLS });
        }
        if self.next.is_multiple_of(CELLS_A_PAGE)
            && let Err(error) = file.reserve_cell(self.kind, self.next)
            && !error.is_unsupported()
        {
            return Err(NoCell::NoRoom);
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    /// Clears a cell and makes it free.
    pub(crate) fn give_back(&mut self, file: &ClientFile, cell: usize) {
        file.array(self.kind).clear(cell);
        self.free.push(cell);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::testing::Bench;

    #[test]
    fn each_cell_is_taken_once_and_again_when_it_was_given_back() {
        let bench = Bench::new();
        let file = &bench.connection.file;
        let mut cells = Cells::of(ArrayKind::Pins);
        for cell in 0..ARRAY_CELLS {
            assert_eq!(cells.take(file), Ok(cell));
        }
        assert_eq!(cells.take(file), Err(NoCell::AllInUse { most: ARRAY_CELLS }));
        let array = file.array(ArrayKind::Pins);
        assert!(array.note(700, 64));
        cells.give_back(file, 700);
        assert_eq!(array.in_use()[700].load(Ordering::Relaxed), 0);
        assert_eq!(cells.take(file), Ok(700));
        assert!(cells.take(file).is_err());
    }
}
