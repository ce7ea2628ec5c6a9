//! The names of all functions and types of the tree.

use std::collections::BTreeSet;

use super::rust_source::is_name;
use crate::tree::Tree;

/// Names without their paths, which suffice to notice that a definition was renamed or removed.
#[derive(Debug, Default)]
pub(super) struct Definitions {
    functions: BTreeSet<String>,
    types: BTreeSet<String>,
}

impl Definitions {
    pub(super) fn of(tree: &Tree) -> Self {
        let mut definitions = Self::default();
        for (_, rust) in tree.rust_files() {
            definitions.add(&rust.code);
        }
        definitions
    }

    pub(super) fn has_function(&self, name: &str) -> bool {
        self.functions.contains(name)
    }

    /// Returns true if `path` (`name`, `Type::method`, `module::name`, each optionally with an
    /// argument list) names a function or a type.
    pub(super) fn has_path(&self, path: &str) -> bool {
        let path = path.split(['(', '<', '!']).next().unwrap_or(path);
        let mut names = path.split("::").collect::<Vec<_>>();
        let last = names.pop().unwrap_or(path);
        let owner_exists = match names.last() {
            Some(owner) if owner.starts_with(char::is_uppercase) && *owner != "Self" => {
                self.types.contains(*owner)
            }
            // Names of modules are not checked.
            _ => true,
        };
        owner_exists && (self.functions.contains(last) || self.types.contains(last))
    }

    fn add(&mut self, code: &str) {
        let mut keyword = "";
        for word in code.split_whitespace() {
            let name: String = word.chars().take_while(|c| is_name(*c)).collect();
            if !name.is_empty() {
                match keyword {
                    "fn" | "macro_rules!" => drop(self.functions.insert(name)),
                    "struct" | "enum" | "union" | "trait" | "type" => {
                        self.types.insert(name);
                    }
                    _ => {}
                }
            }
            keyword = word;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definitions() -> Definitions {
        Definitions::of(&Tree::of(&[(
            "crates/ring/src/lib.rs",
            "pub struct Ring<T> { head: T }\nimpl<T> Ring<T> {\n    pub const fn pop<'a>(&'a self) \
             {}\n}\n// fn commented() {}\nconst TEXT: &str = \"fn quoted()\";\n\
             macro_rules! entry { () => {} }\n",
        )]))
    }

    #[test]
    fn functions_types_and_macros_are_found() {
        let found = definitions();
        for path in ["pop", "pop()", "Ring", "Ring::pop", "ring::Ring<u8>", "Self::pop", "entry!"] {
            assert!(found.has_path(path), "{path}");
        }
    }

    #[test]
    fn fields_comments_and_strings_define_nothing() {
        let found = definitions();
        for path in ["head", "commented", "quoted", "Queue::pop", "Ring::push", ""] {
            assert!(!found.has_path(path), "{path}");
        }
        assert!(found.has_function("pop") && !found.has_function("Ring"));
    }
}
