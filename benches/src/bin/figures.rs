//! Measures the Rcmp paper's figures again: see `rackpool_benches::figures`.

use std::process::ExitCode;

use clap::Parser;
use rackpool_benches::figures::{Arguments, run};

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("figures: {error:#}");
            ExitCode::FAILURE
        }
    }
}
