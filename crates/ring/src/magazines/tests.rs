//! A thread's magazines, compared with plain stacks.

use proptest::prelude::*;

use super::*;
use crate::objects::NoteCell;

const POOL: NonZeroU64 = NonZeroU64::MIN;

fn permit() -> Permit {
    Permit::new(POOL).unwrap()
}

/// A client file for one thread.
fn client_file() -> ClientFile {
    let bytes = ClientFile::bytes(1);
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes).unwrap();
    ClientFile::new(Mapping::new(&file, bytes).unwrap(), 1).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Take,
    Borrow,
    /// Pushes through the magazines themselves (false) or the front ones (true).
    Keep(u64, bool),
    TakeInFront,
    /// The daemon puts `.1` objects into the inbox, beginning with object `.0`.
    Fill(u64, usize),
    /// A restarted daemon clears the note of an object.
    Strike(u64),
    /// The thread ends, and the next thread gets the slot.
    Again,
}

fn object() -> impl Strategy<Value = u64> {
    (1_u64..90).prop_map(|number| number * 64 + (5 << 21))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Take),
        1 => Just(Step::Borrow),
        9 => (object(), any::<bool>()).prop_map(|(object, front)| Step::Keep(object, front)),
        3 => Just(Step::TakeInFront),
        1 => (object(), 0..=MAGAZINE).prop_map(|(first, count)| Step::Fill(first, count)),
        2 => object().prop_map(Step::Strike),
        1 => Just(Step::Again),
    ];
    proptest::collection::vec(step, 1..400)
}

/// The model of a magazine: a bounded stack, in which the daemon sets entries to 0.
struct Stack {
    cells: Vec<u64>,
    capacity: usize,
}

impl Stack {
    fn take(&mut self) -> Option<u64> {
        self.cells.pop().filter(|object| *object != 0)
    }

    fn keep(&mut self, object: u64) -> bool {
        let has_room = self.cells.len() < self.capacity;
        self.cells.extend(has_room.then_some(object));
        has_room
    }

    /// Drops trailing empty cells, as a new owner does that reads the file.
    fn forget_what_is_empty(&mut self) {
        let used = self.cells.iter().rposition(|object| *object != 0).map_or(0, |last| last + 1);
        self.cells.truncate(used);
    }
}

fn one_step(
    step: Step,
    class: usize,
    magazines: &Magazines,
    stack: &mut Stack,
) -> Result<(), TestCaseError> {
    let slot = magazines.slot();
    match step {
        Step::Take => prop_assert_eq!(magazines.take(class, None), stack.take()),
        Step::Borrow => {
            let record = &slot.reservations[0];
            let expected = stack.take();
            prop_assert_eq!(magazines.take(class, Some(record)), expected);
            prop_assert_eq!(record.noted().map(NoteCell::object), expected);
            record.clear();
        }
        Step::Keep(object, false) => {
            prop_assert_eq!(magazines.keep(class, object), stack.keep(object));
        }
        Step::Keep(object, true) => {
            prop_assert_eq!(super::keep(&permit(), class, object), stack.keep(object));
        }
        Step::TakeInFront => {
            // This thread has no window, so no object can be marked.
            prop_assert_eq!(super::take(&permit(), class), None);
            if stack.cells.last().is_some_and(|last| *last == 0) {
                let _struck_out = stack.take();
            }
            prop_assert_eq!(super::take_marked(&permit(), class, |_| true), stack.take());
        }
        Step::Fill(first, count) => {
            while magazines.count(class) > 0 {
                prop_assert_eq!(magazines.take(class, None), stack.take());
            }
            let objects: Vec<u64> = (0..count as u64).map(|next| first + next * 64).collect();
            slot.inbox.iter().zip(&objects).for_each(|(cell, object)| cell.set(*object));
            let fits = count.min(stack.capacity);
            prop_assert_eq!(magazines.fill(class), fits);
            stack.cells = objects[..fits].to_vec();
            let left = slot.inbox.iter().map(NoteCell::object).filter(|object| *object != 0);
            prop_assert_eq!(left.collect::<Vec<_>>(), &objects[fits..]);
            slot.inbox.iter().for_each(|cell| cell.set(0));
        }
        Step::Strike(object) => {
            crate::objects::strike(slot.magazines.iter().flatten(), |found| found == object);
            stack.cells.iter_mut().filter(|cell| **cell == object).for_each(|cell| *cell = 0);
        }
        Step::Again => unreachable!("its caller does that"),
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_magazine_behaves_like_a_stack(
        // A class with many objects, two with few, and one without a magazine.
        class in prop_oneof![Just(0), Just(12), Just(15), Just(MAGAZINE_CLASSES)],
        steps in steps(),
    ) {
        let file = client_file();
        let mut magazines = Magazines::new(&file, 0).unwrap();
        let mut stack = Stack { cells: Vec::new(), capacity: capacity(class) };
        for step in steps {
            if matches!(step, Step::Again) {
                magazines = Magazines::new(&file, 0).unwrap();
                stack.forget_what_is_empty();
            } else {
                magazines.bring_to_front(POOL);
                one_step(step, class, &magazines, &mut stack)?;
            }
            prop_assert_eq!(magazines.count(class), stack.cells.len());
            prop_assert_eq!(magazines.last(class), stack.cells.last().copied().unwrap_or(0));
            prop_assert_eq!(magazines.is_empty(), stack.cells.is_empty());
            // The next daemon or thread finds the same objects in the file.
            let slot = file.thread(0).unwrap();
            let noted = slot.magazines.iter().flatten().map(NoteCell::object);
            let noted: Vec<u64> = noted.filter(|object| *object != 0).collect();
            let kept: Vec<u64> = stack.cells.iter().copied().filter(|object| *object != 0).collect();
            prop_assert_eq!(noted, kept);
        }
    }
}
