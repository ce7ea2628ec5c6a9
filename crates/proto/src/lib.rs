//! The protocols of rackpool as pure state machines.
