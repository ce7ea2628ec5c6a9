//! The rackpool command.
