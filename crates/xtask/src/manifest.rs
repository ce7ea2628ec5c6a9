//! The parts of a `Cargo.toml` that the checks need.

use anyhow::{Context, Result};
use toml::de::{DeTable, DeValue};

/// A package and its dependencies.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) package: String,
    /// Normal and build dependencies, including those of single platforms. Dev-dependencies are
    /// left out, since tests may import any crate.
    pub(crate) dependencies: Vec<Dependency>,
}

/// A dependency: the name of its package, and its line in the manifest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(crate) package: String,
    pub(crate) line: usize,
}

impl Manifest {
    /// Parses the manifest of a package.
    ///
    /// # Errors
    /// When `text` is not TOML or names no package.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let table = DeTable::parse(text)?;
        let table = table.get_ref();
        let package = table_at(table, "package")
            .and_then(|package| package.get("name")?.get_ref().as_str())
            .context("it has no package.name")?
            .to_owned();
        let mut dependencies = imports(table, text);
        for platform in table_at(table, "target").into_iter().flat_map(DeTable::values) {
            if let Some(platform) = platform.get_ref().as_table() {
                dependencies.extend(imports(platform, text));
            }
        }
        Ok(Self { package, dependencies })
    }
}

/// The folders that the manifest at the root lists as members.
///
/// # Errors
/// When `text` is not TOML or lists no members.
pub(crate) fn workspace_members(text: &str) -> Result<Vec<String>> {
    let table = DeTable::parse(text)?;
    let members = table_at(table.get_ref(), "workspace")
        .and_then(|workspace| workspace.get("members")?.get_ref().as_array())
        .context("the root Cargo.toml has no workspace.members")?;
    Ok(members.iter().filter_map(|member| Some(member.get_ref().as_str()?.to_owned())).collect())
}

fn imports(table: &DeTable<'_>, text: &str) -> Vec<Dependency> {
    let mut dependencies = Vec::new();
    for section in ["dependencies", "build-dependencies"] {
        for (key, value) in table_at(table, section).into_iter().flatten() {
            let renamed = value
                .get_ref()
                .as_table()
                .and_then(|table| table.get("package")?.get_ref().as_str());
            dependencies.push(Dependency {
                package: renamed.unwrap_or(key.get_ref()).to_owned(),
                line: 1 + text[..key.span().start].matches('\n').count(),
            });
        }
    }
    dependencies
}

fn table_at<'a, 'i>(table: &'a DeTable<'i>, key: &str) -> Option<&'a DeTable<'i>> {
    table.get(key).map(|value| value.get_ref()).and_then(DeValue::as_table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dependency(package: &str, line: usize) -> Dependency {
        Dependency { package: package.into(), line }
    }

    #[test]
    fn dependencies_carry_their_lines_and_real_names() {
        let text = "\
[package]
name = \"rackpool-daemon\"

[dependencies]
rackpool-model.workspace = true
ring = { package = \"rackpool-ring\", path = \"../crates/ring\" }

[dev-dependencies]
rackpool-client.workspace = true

[target.'cfg(unix)'.dependencies]
nix.workspace = true
";
        let mut manifest = Manifest::parse(text).unwrap();
        manifest.dependencies.sort_by_key(|dependency| dependency.line);
        assert_eq!(manifest.package, "rackpool-daemon");
        assert_eq!(
            manifest.dependencies,
            [
                dependency("rackpool-model", 5),
                dependency("rackpool-ring", 6),
                dependency("nix", 12)
            ]
        );
    }

    #[test]
    fn a_manifest_without_package_or_members_is_an_error() {
        assert!(Manifest::parse("[dependencies]\n").is_err());
        assert!(Manifest::parse("[package\n").is_err());
        assert!(workspace_members("[package]\nname = \"x\"\n").is_err());
        let members = workspace_members("[workspace]\nmembers = [\"client\", \"crates/kv\"]\n");
        assert_eq!(members.unwrap(), ["client", "crates/kv"]);
    }
}
