//! The text files of the workspace, and its members.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::manifest::{self, Manifest};
use crate::tidy::rust_source::RustSource;

/// A text file, with its path below the workspace root (`/` between folders).
#[derive(Debug)]
pub(crate) struct TextFile {
    pub(crate) path: String,
    pub(crate) text: String,
    /// Its code and comments separated, if it is a Rust file.
    pub(crate) rust: Option<RustSource>,
}

/// A package of the workspace.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) folder: String,
    pub(crate) manifest: Manifest,
}

impl Member {
    /// The path of its manifest.
    pub(crate) fn manifest_path(&self) -> String {
        format!("{}/Cargo.toml", self.folder)
    }

    /// Returns true if `path` is an integration test of this package that holds loom models.
    pub(crate) fn has_loom_model(&self, path: &str) -> bool {
        path.strip_prefix(self.folder.as_str())
            .and_then(|below| below.strip_prefix("/tests/loom"))
            .is_some_and(|rest| rest.ends_with(".rs") && !rest.contains('/'))
    }
}

/// All text files of the workspace, sorted by path.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) files: Vec<TextFile>,
}

impl Tree {
    /// Reads the tree below `root`, without cargo's target folders and without hidden folders.
    ///
    /// # Errors
    /// When a folder or a file cannot be read.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut tree = Self { files: Vec::new() };
        tree.read_folder(root, "")?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    /// A tree of these files, given by path and text.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self { files: Vec::new() };
        for (path, text) in files {
            tree.add((*path).to_owned(), (*text).to_owned());
        }
        tree
    }

    /// The text of the file at `path`.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|file| file.path == path).map(|file| file.text.as_str())
    }

    /// The Rust files, each with its source split into code and comments.
    pub(crate) fn rust_files(&self) -> impl Iterator<Item = (&TextFile, &RustSource)> {
        self.files.iter().filter_map(|file| Some((file, file.rust.as_ref()?)))
    }

    /// The packages of the workspace, as the root manifest lists them.
    ///
    /// # Errors
    /// When a manifest is missing, or cargo would not accept it.
    pub(crate) fn members(&self) -> Result<Vec<Member>> {
        let root = self.text("Cargo.toml").context("there is no Cargo.toml at the root")?;
        manifest::workspace_members(root)?.into_iter().map(|folder| self.member(folder)).collect()
    }

    fn member(&self, folder: String) -> Result<Member> {
        let path = format!("{folder}/Cargo.toml");
        let text = self.text(&path).with_context(|| format!("{path} is missing"))?;
        let manifest = Manifest::parse(text).with_context(|| path)?;
        Ok(Member { folder, manifest })
    }

    fn add(&mut self, path: String, text: String) {
        let rust = path.ends_with(".rs").then(|| RustSource::split(&text));
        self.files.push(TextFile { path, text, rust });
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> Result<()> {
        let unreadable = || format!("{} cannot be read", folder.display());
        for entry in fs::read_dir(folder).with_context(unreadable)? {
            let entry = entry.with_context(unreadable)?;
            // A name that is not UTF-8 is not one of the workspace.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let (place, path) = (entry.path(), format!("{prefix}{name}"));
            let kind = entry.file_type().with_context(|| path.clone())?;
            if kind.is_dir() && !is_foreign(&place, &name) {
                self.read_folder(&place, &format!("{path}/"))?;
            } else if kind.is_file() && is_text(&name) {
                let text =
                    fs::read_to_string(&place).with_context(|| format!("{path} cannot be read"))?;
                self.add(path, text);
            }
        }
        Ok(())
    }
}

/// Returns true if `folder` holds the manifest of a workspace.
pub(crate) fn is_workspace_root(folder: &Path) -> bool {
    fs::read_to_string(folder.join("Cargo.toml"))
        .is_ok_and(|manifest| manifest.lines().any(|line| line.trim() == "[workspace]"))
}

/// Returns true if a folder holds no files of the workspace. cargo marks its target folders.
fn is_foreign(folder: &Path, name: &str) -> bool {
    name.starts_with('.')
        || name == "target"
        || folder.join("CACHEDIR.TAG").exists()
        || folder.join(".git").exists()
}

fn is_text(name: &str) -> bool {
    name == "Makefile"
        || [".rs", ".toml", ".md", ".sh", ".py"].iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_from_the_manifests() {
        let tree = Tree::of(&[
            ("Cargo.toml", "[workspace]\nmembers = [\"crates/ring\"]\n"),
            ("crates/ring/Cargo.toml", "[package]\nname = \"rackpool-ring\"\n"),
        ]);
        let members = tree.members().unwrap();
        assert_eq!(members.len(), 1);
        assert_eq!(members[0].manifest_path(), "crates/ring/Cargo.toml");
        assert_eq!(members[0].manifest.package, "rackpool-ring");
        assert!(members[0].has_loom_model("crates/ring/tests/loom_two_level.rs"));
        assert!(!members[0].has_loom_model("crates/ring/tests/two_level.rs"));
        assert!(!members[0].has_loom_model("crates/rings/tests/loom.rs"));
    }

    #[test]
    fn a_missing_manifest_is_named() {
        let tree = Tree::of(&[("Cargo.toml", "[workspace]\nmembers = [\"client\"]\n")]);
        assert_eq!(tree.members().unwrap_err().to_string(), "client/Cargo.toml is missing");
    }

    #[test]
    fn the_tree_leaves_out_build_output_and_hidden_folders() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for folder in ["src", ".git", "target", "elsewhere"] {
            fs::create_dir_all(root.join(folder)).unwrap();
            fs::write(root.join(folder).join("file.rs"), "").unwrap();
        }
        fs::write(root.join("elsewhere/CACHEDIR.TAG"), "").unwrap();
        fs::write(root.join("picture.png"), [0xff, 0xfe]).unwrap();
        let tree = Tree::read(root).unwrap();
        let paths: Vec<&str> = tree.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["src/file.rs"]);
    }
}
