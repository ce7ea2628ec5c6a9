//! The rackpool command.

//pub mod report;
pub mod ycsb;
