//! A client in a process of its own, so that it can be killed. Driven by the tests.

fn main() -> anyhow::Result<()> {
    rackpool_tests::program::run(std::env::args().skip(1).collect())
}
