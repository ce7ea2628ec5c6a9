//! The limit of open files, which limits the number of clients of a daemon.

use std::io;

use rackpool_model::RackId;
use rackpool_output::chain;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Returns the message for a client that could not be admitted because of `error`.
pub(super) fn explain(error: &anyhow::Error, rack: RackId) -> String {
    let errno = error.chain().find_map(|cause| {
        let code = cause.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
        code.or_else(|| cause.downcast_ref::<Errno>().copied())
    });
    match errno {
        Some(Errno::MFILE) => format!("the daemon of {rack} {}", limit()),
        Some(Errno::NFILE) => format!(
            "the host of the daemon of {rack} has as many open files as it may have (sysctl fs.file-max)"
        ),
        _ => chain(error.as_ref()),
    }
}

/// Describes the limit that is reached, and how to raise it.
fn limit() -> String {
    let files = getrlimit(Resource::Nofile).current;
    let files = files.map_or_else(|| "as many".to_owned(), |files| files.to_string());
    format!(
        "has {files} open files, which is its limit, and each client takes some: close other clients, or \
         start it with a higher limit (ulimit -Hn, LimitNOFILE= of systemd)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_limit_of_open_files_is_explained() {
        let full: anyhow::Error = io::Error::from(Errno::MFILE).into();
        let text = explain(&full.context("can't open the file"), RackId(3));
        assert!(text.starts_with("the daemon of rack 3 has "), "{text}");
        assert!(text.contains("ulimit -Hn"), "{text}");
        assert!(explain(&Errno::NFILE.into(), RackId(3)).contains("fs.file-max"));
        let other = explain(&io::Error::from(Errno::NOENT).into(), RackId(3));
        assert!(!other.contains("limit"), "{other}");
    }
}
