//! Names the commit that a release was built from, for `rackpool_build_info`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=RACKPOOL_COMMIT");
    let given = std::env::var("RACKPOOL_COMMIT").ok();
    let commit = given.or_else(commit).unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=RACKPOOL_COMMIT={commit}");
}

/// Returns the commit of the sources; `None` if the sources are not a clone. Builds that are not
/// releases name no commit, because each commit would rebuild every crate above this one.
fn commit() -> Option<String> {
    if std::env::var("PROFILE").ok()? != "release" {
        return None;
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !text.is_empty()).then_some(text)
    };
    for file in ["HEAD", "logs/HEAD"] {
        println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", file])?);
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}
