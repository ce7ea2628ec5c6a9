use std::sync::Arc;

use rackpool_sync::atomic::Ordering;

use crate::commands::{Context, key_of_large};
use crate::failure::{Failure, told};
use crate::large::LargeValue;
use crate::resp::{Args, LargeArgument, LongArgument};

/// The long arguments of the request that arrives: their bytes go to the pool's memory as they
/// come.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    /// The arguments of which something has arrived. The last one may be incomplete.
    arguments: Vec<LargeArgument>,
    /// Why the request will not be executed. Bytes that still come are dropped.
    refused: Option<Failure>,
}

impl Arriving {
    /// Takes bytes of a long argument of the request with these arguments so far.
    pub(super) fn take(
        &mut self,
        context: &mut Context<'_>,
        args: Args<'_>,
        long: LongArgument,
        bytes: &[u8],
    ) {
        if self.refused.is_some() {
            return;
        }
        if let Err(failure) = self.try_take(context, args, long, bytes) {
            if failure.is_out_of_memory() {
                context.shared.wants_memory.store(true, Ordering::Relaxed);
            }
            self.arguments.clear();
            self.refused = Some(failure);
        }
    }

    fn try_take(
        &mut self,
        context: &mut Context<'_>,
        args: Args<'_>,
        LongArgument { index, len, missing }: LongArgument,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        let value = match self.arguments.last() {
            Some(last) if last.index == index => Arc::clone(&last.value),
            _ => {
                let most = context.shared.longest_entry;
                let key = key_of_large(args, index).filter(|_| context.session.is_known);
                let key = key.ok_or_else(|| too_long(len, most))?;
                let value = LargeValue::begin(&context.store.strings, key, len as u64)?;
                let value = Arc::new(value);
                self.arguments.push(LargeArgument { index, value: Arc::clone(&value) });
                value
            }
        };
        let offset = (len - missing - bytes.len()) as u64;
        if value.has_to_grow(offset, bytes.len()) {
            context.make_room()?;
        }
        value.write(offset, bytes)
    }

    /// Ends the request: its arguments in the pool, or why it is not executed.
    pub(super) fn end(&mut self) -> Result<Vec<LargeArgument>, Failure> {
        let arguments = std::mem::take(&mut self.arguments);
        self.refused.take().map_or(Ok(arguments), Err)
    }

    /// Whether nothing of a long argument has arrived.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.arguments.is_empty() && self.refused.is_none()
    }
}

fn too_long(bytes: usize, most: usize) -> Failure {
    told(format!(
        "ERR string exceeds maximum allowed size (proto-max-bulk-len): {bytes} B, only the value of \
         a string may have more than {most} B; a pool with larger pages allows more"
    ))
}
