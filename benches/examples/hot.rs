use rackpool_cli::cluster::{Cluster, ClusterOptions};
use rackpool_client::{ClientOptions, Pool, RackId};
use std::hint::black_box;
fn main() {
    println!("support {}", rackpool_sync::barrier::is_supported());
    let mut o = ClusterOptions::ephemeral().unwrap();
    o.racks = 1;
    let c = Cluster::start(o).unwrap();
    let p = Pool::open(ClientOptions::new(&c.options().dir, RackId(0))).unwrap();
    let a = p.alloc(4096).unwrap();
    let mut b = [0u8; 64];
    p.read(a, &mut b).unwrap();
    for _ in 0..5 {
    let n = 100_000_000u64;
    let t = std::time::Instant::now();
    for i in 0..n {
        let addr = rackpool_client::GlobalAddr::from_raw(a.raw() + (i % 64) * 64);
        p.read(addr, &mut b).unwrap();
        black_box(&b);
    }
    println!("{:?}", t.elapsed() / 100_000_000 * 1000);
    println!("{:.2} ns", t.elapsed().as_secs_f64() * 1e9 / n as f64);
    }
    c.stop().unwrap();
}
