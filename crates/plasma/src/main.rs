//! The `rackpool-plasma` program.

fn main() {}
