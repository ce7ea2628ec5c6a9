//! Factories of decorated fabrics.

use std::sync::Arc;
use std::time::Duration;

use rackpool_model::{Incarnation, RackId};

use super::fault::{FaultFabric, Faults};
use super::throttle::{Cards, ThrottleFabric};
use super::{Factory, Hardware, Node};
use crate::MemoryRegion;

/// Fabrics of another factory with delayed and reordered events.
pub struct Late<F>(pub F);

impl<F: Factory> Factory for Late<F> {
    fn start_incarnation(
        &self,
        rack: (RackId, Incarnation),
        frames_len: u64,
        hardware: Hardware,
    ) -> Node {
        let Node { fabric, frames } = self.0.start_incarnation(rack, frames_len, hardware);
        let longest_delay = Duration::from_micros(300);
        let faults = Faults { seed: u64::from(rack.0.0), longest_delay, lose_at: None };
        Node { fabric: Box::new(FaultFabric::new(fabric, faults)), frames }
    }

    fn memory(&self, len: u64) -> Arc<dyn MemoryRegion> {
        self.0.memory(len)
    }

    fn nowhere(&self) -> String {
        self.0.nowhere()
    }

    fn models_time(&self) -> bool {
        self.0.models_time()
    }
}

/// Fabrics of another factory, throttled to the hardware to be modelled.
pub struct Slow<F> {
    inner: F,
    cards: Arc<Cards>,
}

impl<F> Slow<F> {
    /// Decorates a factory. The fabrics that it starts share the cards of their racks.
    pub fn new(inner: F) -> Self {
        Self { inner, cards: Arc::default() }
    }
}

impl<F: Factory> Factory for Slow<F> {
    fn start_incarnation(
        &self,
        rack: (RackId, Incarnation),
        frames_len: u64,
        hardware: Hardware,
    ) -> Node {
        // The decorated fabric runs at full speed.
        let Node { fabric, frames } =
            self.inner.start_incarnation(rack, frames_len, Hardware::FAST);
        let fabric = ThrottleFabric::new(fabric, rack.0, hardware, Arc::clone(&self.cards));
        Node { fabric: Box::new(fabric), frames }
    }

    fn memory(&self, len: u64) -> Arc<dyn MemoryRegion> {
        self.inner.memory(len)
    }

    fn nowhere(&self) -> String {
        self.inner.nowhere()
    }

    fn models_time(&self) -> bool {
        true
    }
}
