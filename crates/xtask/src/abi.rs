//! The tests that hold the ABI of `crates/fabric-verbs` against the packages rdma-sys and ibverbs,
//! one of which runs in the lab. These packages need system libraries, so the tests are a package
//! apart from the workspace.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::invocation::Invocation;
use crate::runner::{Step, Work};

/// The manifest of the package.
pub(crate) const MANIFEST: &str = "tests/abi/Cargo.toml";
/// The folder in cargo's target folder: other dependencies than the workspace's.
const TARGET: &str = "abi";

/// The folders of libclang whose version rdma-sys can use, the preferred first.
const LIBCLANG: &[&str] = &["/usr/lib/llvm-15/lib", "/usr/lib/llvm-14/lib"];
/// With which bindgen finds libclang.
const LIBCLANG_PATH: &str = "LIBCLANG_PATH";
/// Debian's package with libclang, and the one with its headers.
const LIBCLANG_PACKAGES: &str = "libclang1-15 libclang-common-15-dev (or 14)";

/// What a reason begins with for which the step is skipped.
pub(crate) const NOT_COMPARED: &str =
    "the ABI of libibverbs was NOT compared with rdma-sys and ibverbs";

/// A program or a file that the build needs, and the Debian package that contains it.
const NEEDED: &[(&str, &str)] = &[
    ("cc", "gcc"),
    ("cmake", "cmake"),
    ("pkg-config", "pkg-config"),
    ("python3", "python3"),
    ("/usr/include/infiniband/verbs.h", "libibverbs-dev"),
    ("/usr/include/rdma/rdma_cma.h", "librdmacm-dev"),
    ("/usr/include/libnl3/netlink/netlink.h", "libnl-3-dev"),
    ("/usr/include/libnl3/netlink/route/link.h", "libnl-route-3-dev"),
];

/// The step of `cargo x ci`.
pub(crate) fn step(root: &Path) -> Step {
    let system = Path::new("/");
    let (test, missing) = test(system);
    // Clippy needs the same libraries as the tests.
    let lint = call("clippy --locked --all-targets", libclang(system).as_deref());
    let lint = lint.with("--").with("-D").with("warnings");
    let mut step = Step::run("abi", vec![lint, test]);
    let fetch = Invocation::cargo("fetch --locked --manifest-path").with(MANIFEST);
    if let Some(why) = missing {
        step.work = Work::Skip(why);
    } else if !fetch.succeeds(root) {
        step.work = Work::Skip(format!("{NOT_COMPARED}: `{fetch}` fails"));
    }
    step
}

/// The call of cargo that runs the tests; and the reason why it would fail here, if there is one.
/// `system` is the root of the file system.
pub(crate) fn test(system: &Path) -> (Invocation, Option<String>) {
    let libclang = libclang(system);
    let missing = missing(libclang.is_some(), |needed| is_there(system, needed));
    (call("test --locked", libclang.as_deref()), missing)
}

/// The folder of the libclang to use.
fn libclang(system: &Path) -> Option<String> {
    env::var(LIBCLANG_PATH).ok().or_else(|| found(system, LIBCLANG))
}

/// A command of cargo for the package.
fn call(command: &str, libclang: Option<&str>) -> Invocation {
    let target = env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    let call = Invocation::cargo(command)
        .with("--manifest-path")
        .with(MANIFEST)
        .with("--target-dir")
        .with(format!("{target}/{TARGET}"));
    match libclang {
        Some(folder) => call.env(LIBCLANG_PATH, folder),
        None => call,
    }
}

/// The first of the folders with a libclang and the headers that belong to it.
fn found(system: &Path, folders: &[&str]) -> Option<String> {
    let names = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let is_libclang = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let rest = name.strip_prefix("libclang").unwrap_or_default();
        // `libclang-cpp.so` is another library.
        rest.starts_with(".so") || (rest.starts_with("-1") && rest.contains(".so"))
    };
    let has_both = |folder: &&&str| {
        let folder = system.join(folder.trim_start_matches('/'));
        let versions = names(&folder.join("clang"));
        names(&folder).iter().any(is_libclang)
            && versions.iter().any(|version| version.join("include/stddef.h").exists())
    };
    folders.iter().find(has_both).map(ToString::to_string)
}

fn missing(has_libclang: bool, is_there: impl Fn(&str) -> bool) -> Option<String> {
    let needed = NEEDED.iter().filter(|(needed, _)| !is_there(needed));
    let mut packages: Vec<&str> = needed.map(|(_, package)| *package).collect();
    if !has_libclang {
        packages.push(LIBCLANG_PACKAGES);
    }
    (!packages.is_empty()).then(|| {
        let packages = packages.join(", ");
        format!(
            "{NOT_COMPARED}: Debian's packages {packages} are missing (bash deploy/prepare.sh test)"
        )
    })
}

fn is_there(system: &Path, needed: &str) -> bool {
    if let Some(file) = needed.strip_prefix('/') {
        return system.join(file).exists();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(needed).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_a_target_folder_of_its_own_and_the_libclang_that_was_found() {
        let line = call("test --locked", Some("/usr/lib/llvm-15/lib")).to_string();
        let start = "LIBCLANG_PATH=/usr/lib/llvm-15/lib cargo test --locked --manifest-path \
                     tests/abi/Cargo.toml --target-dir ";
        assert!(line.starts_with(start) && line.ends_with("/abi"), "{line}");
    }

    #[test]
    fn the_first_libclang_with_its_headers_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        let folders = ["/llvm-15/lib", "/llvm-14/lib"];
        make("llvm-15/lib/libclang-cpp.so.15");
        make("llvm-15/lib/clang/15.0.6/include/stddef.h");
        assert_eq!(found(root.path(), &folders), None);
        make("llvm-14/lib/libclang-14.so.1");
        assert_eq!(found(root.path(), &folders), None, "its headers are missing");
        make("llvm-14/lib/clang/14.0.6/include/stddef.h");
        assert_eq!(found(root.path(), &folders).as_deref(), Some("/llvm-14/lib"));
        make("llvm-15/lib/libclang.so.1");
        assert_eq!(found(root.path(), &folders).as_deref(), Some("/llvm-15/lib"));
    }

    #[test]
    fn what_is_missing_is_named_and_the_step_is_skipped() {
        assert_eq!(missing(true, |_| true), None);
        let why = missing(false, |needed| needed != "cmake").unwrap();
        assert!(why.contains("NOT compared"), "{why}");
        assert!(why.contains("packages cmake, libclang1-15 libclang-common-15-dev (or 14) are"));
        let nowhere = tempfile::tempdir().unwrap();
        let (_, why) = test(nowhere.path());
        assert!(why.unwrap().contains("libibverbs-dev, librdmacm-dev, libnl-3-dev"));
    }
}
