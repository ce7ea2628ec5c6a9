//! The `rackpool-kv` program.

fn main() -> std::process::ExitCode {
    rackpool_output::run_server("rackpool-kv", || {
        let options: rackpool_kv_service::ServiceOptions = rackpool_config::parse("kv");
        rackpool_kv_service::run(&options)
    })
}
