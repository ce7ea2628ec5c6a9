//! One call of cargo, or of a program that it built: printed so that it can be pasted into a shell,
//! and run.

use std::env;
use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::skipped;

const CARGO: &str = "cargo";

/// A call with its arguments and the environment it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invocation {
    program: String,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Invocation {
    /// A call of cargo with these arguments, separated by white space; no argument may contain any.
    pub(crate) fn cargo(arguments: &str) -> Self {
        let arguments = arguments.split_whitespace().map(String::from).collect();
        Self { program: CARGO.into(), arguments, environment: Vec::new() }
    }

    /// A call of the program at `path`, which an earlier call of cargo has built.
    pub(crate) fn built(path: impl Into<String>) -> Self {
        Self { program: path.into(), arguments: Vec::new(), environment: Vec::new() }
    }

    pub(crate) fn with(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Runs the program in `root`, with this program's standard output and error.
    ///
    /// # Errors
    /// When the program cannot be started, or fails.
    pub(crate) fn run(&self, root: &Path) -> Result<()> {
        let status =
            self.command(root).status().with_context(|| format!("`{self}` did not start"))?;
        ensure!(status.success(), "`{self}` failed: {status}");
        Ok(())
    }

    /// Runs the program in `root` and returns its standard output; its standard error is this
    /// program's.
    ///
    /// # Errors
    /// When the program cannot be started, or fails.
    pub(crate) fn output(&self, root: &Path) -> Result<String> {
        let output = self
            .command(root)
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("`{self}` did not start"))?;
        ensure!(output.status.success(), "`{self}` failed: {}", output.status);
        String::from_utf8(output.stdout).with_context(|| format!("`{self}` printed no text"))
    }

    /// Returns true if the program succeeds; its output is dropped.
    pub(crate) fn succeeds(&self, root: &Path) -> bool {
        let quiet = self.command(root).stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok_and(|status| status.success())
    }

    fn command(&self, root: &Path) -> Command {
        // cargo tells its children its own path, so that all steps use the same toolchain.
        let cargo = env::var_os("CARGO").filter(|_| self.program == CARGO);
        // A path is relative to `root`, not to the current folder.
        let program = if self.program.contains('/') {
            root.join(&self.program).into()
        } else {
            cargo.unwrap_or_else(|| (&self.program).into())
        };
        let mut command = Command::new(program);
        command.args(&self.arguments).current_dir(root);
        command.env(skipped::VARIABLE, skipped::file(root));
        for (name, value) in &self.environment {
            command.env(name, value);
        }
        command
    }
}

impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(&quoted(&self.program))?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {}", quoted(argument)))
    }
}

/// `word` as a shell reads it back unchanged.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_prints_as_a_shell_line() {
        let models = Invocation::cargo("test --test").with("loom*").env("RUSTFLAGS", "--cfg loom");
        assert_eq!(models.to_string(), "RUSTFLAGS='--cfg loom' cargo test --test 'loom*'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn a_failing_call_is_an_error_that_names_the_call() {
        let root = std::env::temp_dir();
        let wrong = Invocation::cargo("no-such-command-of-cargo");
        assert!(!wrong.succeeds(&root));
        assert!(Invocation::cargo("--version").succeeds(&root));
    }

    #[test]
    fn what_was_built_is_found_below_the_root_and_named_as_a_shell_there_finds_it() {
        let shell = Invocation::built("bin/sh").with("-c").with("exit 0");
        assert_eq!(shell.to_string(), "bin/sh -c 'exit 0'");
        assert!(shell.succeeds(Path::new("/")));
        assert!(!shell.succeeds(Path::new("/nowhere")));
    }
}
