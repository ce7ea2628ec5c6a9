//! The `rackpool-plasma` program.

fn main() -> std::process::ExitCode {
    rackpool_output::run_server("rackpool-plasma", || {
        let options: rackpool_plasma::PlasmaOptions = rackpool_config::parse("plasma");
        rackpool_plasma::run(&options)
    })
}
