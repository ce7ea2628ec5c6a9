//! The `rackpool-fuse` program.

fn main() -> std::process::ExitCode {
    rackpool_output::run_server("rackpool-fuse", || {
        let options: rackpool_fuse::MountOptions = rackpool_config::parse("fuse");
        rackpool_fuse::run(&options)
    })
}
