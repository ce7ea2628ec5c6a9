//! A client in a process of its own, which the tests drive and kill.

fn main() -> anyhow::Result<()> {
    rackpool_tests::program::run(std::env::args().skip(1).collect())
}
