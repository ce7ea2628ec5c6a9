/// Waits for the end of standard input if `asked`, else for ever.
pub(crate) async fn stdin_closed(asked: bool) {
    if !asked {
        return std::future::pending().await;
    }
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    // A dedicated thread, because reading standard input can't be cancelled.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        drop(ended);
    });
    let _ = end.await;
}
