//! Tests with scrapers and with peers that break the protocol.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use rackpool_metrics::{Page, Source, Unit, bind, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

struct One;

impl Source for One {
    fn show(&self, page: &mut Page<'_>) -> fmt::Result {
        page.counter("things", "Things.", Unit::None, 1)
    }

    fn health(&self) -> Result<(), String> {
        Err("it is ill".into())
    }
}

async fn start() -> SocketAddr {
    let listener = bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, Arc::new(One)));
    address
}

async fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn metrics_are_served_and_nothing_else() {
    let address = start().await;
    let text = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains("\r\nContent-Type: text/plain; version=0.0.4;"), "{text}");
    assert!(text.contains("\nrackpool_things_total 1\n") && !text.contains("# EOF"), "{text}");
    let request = b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
    let text = ask(address, request).await;
    assert!(text.contains("\r\nContent-Type: application/openmetrics-text;"), "{text}");
    assert!(text.contains("\nrackpool_things_total 1\n") && text.ends_with("# EOF\n"), "{text}");
    let head = ask(address, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    let health = ask(address, b"GET /healthz HTTP/1.1\r\n\r\n").await;
    assert!(
        health.starts_with("HTTP/1.1 503 ") && health.ends_with("\r\n\r\nit is ill\n"),
        "{health}"
    );
    assert!(ask(address, b"GET / HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404"));
    assert!(ask(address, b"\xff\xfe\xfd\xfc").await.starts_with("HTTP/1.1 400"));
    assert!(ask(address, &[b'a'; 8 << 10]).await.starts_with("HTTP/1.1 4"));
}

#[tokio::test]
async fn unauthenticated_peers_who_say_nothing_and_readers_who_take_nothing_do_not_keep_others_out()
{
    let address = start().await;
    let mut idle = Vec::new();
    for n in 0..40 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        if n % 2 == 0 {
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").await.unwrap();
        }
        idle.push(stream);
    }
    // More connections than the limit: each ends by its timeout.
    let text = ask(address, b"GET /metrics HTTP/1.1\r\n\r\n").await;
    assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
    drop(idle);
}

#[tokio::test]
async fn other_hosts_can_not_connect() {
    for address in ["0.0.0.0:0", "[::]:0", "10.1.2.3:9000"] {
        let error = bind(address.parse().unwrap()).await.unwrap_err().to_string();
        assert!(error.contains("--metrics") && error.contains("127.0.0.1"), "{error}");
    }
}
