//! The import arrows: the crates that each crate of the workspace may import.

use super::Violation;
use crate::tree::Member;

/// The crates that each crate may import directly, all without their prefix `rackpool-`.
const ALLOWED: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("wire", &["model"]),
    ("proto", &["wire", "model"]),
    ("sync", &[]),
    // For tests of any crate.
    ("testing", &[]),
    ("shm", &["sync", "model"]),
    ("ring", &["shm", "sync", "model"]),
    ("fabric", &["sync", "model"]),
    ("access", &["shm", "model"]),
    ("output", &["sync"]),
    ("config", &["output"]),
    ("metrics", &["output", "sync"]),
    ("trace", &["proto", "wire", "model"]),
    ("dca", &["sync"]),
    ("numa", &["fabric", "fabric-verbs", "shm", "sync", "model"]),
    ("fabric-verbs", &["fabric", "sync", "model"]),
    ("rrpc", &["fabric", "wire", "model"]),
    ("client", &["proto", "ring", "shm", "sync", "model", "wire"]),
    ("daemon", SHELL),
    ("metaserver", SHELL),
    ("kv", &["client", "sync"]),
    ("kv-service", &["client", "kv", "access", "config", "metrics", "model", "output", "sync"]),
    ("fs", &["client", "kv"]),
    ("fuse", &["fs", "client", "config", "metrics", "output", "sync"]),
    ("objects", &["client", "kv", "proto", "sync", "wire"]),
    ("plasma", &["client", "cluster", "objects", "config", "output", "sync"]),
    // It starts the servers as processes.
    ("cluster", &["model", "output", "shm"]),
    ("admin", &["access", "model", "output", "shm", "wire"]),
    // It measures memory of the kinds that `shm` makes.
    ("doctor", &["access", "model", "output", "shm", "sync"]),
    ("ycsb", &["admin", "client", "kv", "model", "output", "sync", "trace"]),
    ("report", &["model", "output", "ycsb"]),
    (
        "cli",
        &[
            "admin", "cluster", "dca", "doctor", "numa", "report", "ycsb", "client", "kv", "fs",
            "objects", "access", "config", "output", "proto", "ring", "shm", "sync", "trace",
            "wire", "model",
        ],
    ),
    ("sim", &["proto", "sync", "model", "wire"]),
    // They show what a program outside the workspace can do.
    ("examples", &["client", "kv", "model"]),
];

/// The crates that the shells around the machines may import.
const SHELL: &[&str] = &[
    "proto",
    "rrpc",
    "ring",
    "shm",
    "sync",
    "fabric",
    "fabric-verbs",
    "access",
    "config",
    "metrics",
    "output",
    "model",
    "wire",
];

/// No crate imports these, so they may import any crate.
const UNBOUND: &[&str] = &["benches", "fuzz", "tests", "xtask"];

pub(super) fn check(members: &[Member]) -> Vec<Violation> {
    members.iter().flat_map(check_member).collect()
}

fn check_member(member: &Member) -> Vec<Violation> {
    let path = member.manifest_path();
    let Some(name) = member.manifest.package.strip_prefix("rackpool-") else {
        let package = &member.manifest.package;
        return vec![Violation::new(path, 1, format!("call the package `rackpool-{package}`"))];
    };
    if UNBOUND.contains(&name) {
        return Vec::new();
    }
    let Some((_, allowed)) = ALLOWED.iter().find(|(importer, _)| *importer == name) else {
        let message = format!(
            "`{name}` has no place in the table of imports: add what it may import to ALLOWED \
             in crates/xtask/src/tidy/import_arrows.rs"
        );
        return vec![Violation::new(path, 1, message)];
    };
    let forbidden = |imported: &str| {
        let allowed = if allowed.is_empty() { "nothing".into() } else { allowed.join(", ") };
        format!(
            "`{name}` must not import `{imported}`, only {allowed}: move what it needs down to one \
             of these, or the code up to a crate that may import `{imported}`"
        )
    };
    let mut violations = Vec::new();
    for dependency in &member.manifest.dependencies {
        if let Some(imported) = dependency.package.strip_prefix("rackpool-")
            && !allowed.contains(&imported)
        {
            violations.push(Violation::new(path.as_str(), dependency.line, forbidden(imported)));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    fn violations(package: &str, dependencies: &str) -> Vec<Violation> {
        let text = format!("[package]\nname = \"{package}\"\n[dependencies]\n{dependencies}");
        let manifest = Manifest::parse(&text).unwrap();
        check(&[Member { folder: "crates/x".into(), manifest }])
    }

    #[test]
    fn allowed_imports_and_foreign_crates_pass() {
        let both = "rackpool-shm.workspace = true\nrackpool-sync.workspace = true\n";
        assert_eq!(violations("rackpool-ring", both), []);
        assert_eq!(violations("rackpool-model", "thiserror = \"2\"\n"), []);
        assert_eq!(violations("rackpool-tests", both), []);
    }

    #[test]
    fn an_arrow_upwards_is_found_with_its_line() {
        let found =
            violations("rackpool-shm", "thiserror = \"2\"\nrackpool-ring.workspace = true\n");
        assert_eq!(found.len(), 1);
        let text = found[0].to_string();
        assert!(text.starts_with("crates/x/Cargo.toml:5: `shm` must not import `ring`"), "{text}");
    }

    #[test]
    fn what_an_import_imports_is_not_allowed_with_it() {
        // kv -> client -> model does not imply an arrow kv -> model.
        assert_eq!(violations("rackpool-kv", "rackpool-model.workspace = true\n").len(), 1);
    }

    #[test]
    fn a_new_crate_needs_a_place_in_the_table() {
        assert!(violations("rackpool-cache", "")[0].message.contains("no place in the table"));
        assert!(violations("cache", "")[0].message.contains("call the package"));
    }
}
