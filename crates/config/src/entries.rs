use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction};
use toml::de::{DeTable, DeValue};

use crate::ConfigError;

/// A configuration file.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    text: String,
}

/// A key and its value, with their position in the file.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    value: Value,
    path: PathBuf,
    /// Line number, from 1.
    line: usize,
}

/// The value of an option.
#[derive(Debug)]
enum Value {
    Switch(bool),
    One(String),
    Many(Vec<String>),
}

impl File {
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self { path: path.to_owned(), text }),
            Err(source) => Err(ConfigError::Unreadable { path: path.to_owned(), source }),
        }
    }

    /// Returns the entries of a section, or none if the file lacks the section. A section that is
    /// not in `known` is an error.
    pub(crate) fn section(&self, name: &str, known: &[&str]) -> Result<Vec<Entry>, ConfigError> {
        let document = DeTable::parse(&self.text).map_err(|error| ConfigError::Syntax {
            path: self.path.clone(),
            line: self.line(error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        let mut entries = Vec::new();
        for (key, value) in document.into_inner() {
            let (start, key) = (key.span().start, key.into_inner().into_owned());
            let DeValue::Table(table) = value.into_inner() else {
                return Err(self.refused(
                    start,
                    key,
                    "an option stands under its program, like [daemon]",
                ));
            };
            if !known.contains(&key.as_str()) {
                let sections = known.join("], [");
                return Err(self.refused(start, key, format!("the sections are [{sections}]")));
            }
            if key != name {
                continue;
            }
            for (key, value) in table {
                let (start, key) = (key.span().start, key.into_inner().into_owned());
                let Some(value) = Value::of(value.get_ref()) else {
                    return Err(self.refused(start, key, "no option takes such a value"));
                };
                entries.push(Entry { key, value, path: self.path.clone(), line: self.line(start) });
            }
        }
        Ok(entries)
    }

    fn refused(&self, at: usize, key: String, message: impl Into<String>) -> ConfigError {
        let (path, line) = (self.path.clone(), self.line(at));
        ConfigError::Entry { path, line, key, message: message.into() }
    }

    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at).unwrap_or_default();
        before.iter().filter(|byte| **byte == b'\n').count() + 1
    }
}

impl Entry {
    /// Returns the command-line arguments that mean the same as this entry.
    pub(crate) fn words(&self, option: &Arg) -> Result<Vec<String>, ConfigError> {
        let name = &self.key;
        let is_switch = matches!(option.get_action(), ArgAction::SetTrue);
        let takes_many = matches!(option.get_action(), ArgAction::Append);
        match &self.value {
            Value::Switch(on) if is_switch => {
                Ok(on.then(|| format!("--{name}")).into_iter().collect())
            }
            _ if is_switch => Err(self.refused("it is true or false")),
            Value::One(value) => Ok(vec![format!("--{name}={value}")]),
            Value::Many(values) if takes_many => {
                Ok(values.iter().map(|value| format!("--{name}={value}")).collect())
            }
            Value::Many(_) => Err(self.refused("it takes one value, not a list")),
            Value::Switch(_) => Err(self.refused("it takes a value, not true or false")),
        }
    }

    pub(crate) fn refused(&self, message: impl Into<String>) -> ConfigError {
        ConfigError::Entry {
            path: self.path.clone(),
            line: self.line,
            key: self.key.clone(),
            message: message.into(),
        }
    }
}

impl Value {
    fn of(value: &DeValue<'_>) -> Option<Self> {
        match value {
            DeValue::Boolean(on) => Some(Self::Switch(*on)),
            DeValue::Array(values) => values
                .iter()
                .map(|value| scalar(value.get_ref()))
                .collect::<Option<_>>()
                .map(Self::Many),
            value => scalar(value).map(Self::One),
        }
    }
}

fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => {
            i128::from_str_radix(number.as_str(), number.radix()).ok().map(|n| n.to_string())
        }
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        _ => None,
    }
}
