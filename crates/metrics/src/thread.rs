use std::net::SocketAddr;
use std::sync::Arc;

use tokio::runtime::Builder;

use crate::{BindError, Source, bind, serve};

/// Serves the metrics from a dedicated thread until the process ends, for programs without a
/// runtime. The thread sleeps between scrapes.
///
/// # Errors
/// Those of [`bind`], and when the thread can't be started.
pub fn start(address: SocketAddr, source: Arc<dyn Source>) -> Result<(), BindError> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let listener = runtime.block_on(bind(address))?;
    std::thread::Builder::new()
        .name("metrics".into())
        .spawn(move || match runtime.block_on(serve(listener, source)) {})?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;
    use crate::Page;

    struct Nothing;

    impl Source for Nothing {
        fn show(&self, _: &mut Page<'_>) -> fmt::Result {
            Ok(())
        }
    }

    #[test]
    fn an_address_that_others_could_reach_is_refused_before_a_thread_is_started() {
        let all = "0.0.0.0:0".parse().expect("an address");
        let refused = start(all, Arc::new(Nothing)).expect_err("others could connect");
        assert!(matches!(refused, BindError::NotLoopback(address) if address == all));
    }
}
