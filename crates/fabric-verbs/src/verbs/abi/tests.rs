//! Checks the layouts and constants against numbers, and the numbers against the C headers.

use std::path::Path;
use std::process::Command;

use rackpool_testing::skipped;

use super::table::{constants, functions, slots, structs};

const HEADER: &str = "infiniband/verbs.h";

#[test]
fn structs_and_constants_are_those_of_the_abi() {
    for one in structs() {
        assert_eq!(one.size, one.expected_size, "{}", one.name);
        for field in one.fields {
            assert_eq!(field.offset, field.expected_offset, "{} of {}", field.name, one.name);
        }
    }
    for constant in constants() {
        assert_eq!(constant.value, constant.expected, "{}", constant.name);
    }
}

/// What is compared is everything that is declared.
#[test]
fn the_table_lacks_nothing() {
    /// Used by address only.
    const OPAQUE: usize = 3;
    let declared = |keyword: &str| {
        let start = format!("pub(super) {keyword} ");
        include_str!("../abi.rs").lines().filter(|line| line.starts_with(&start)).count()
    };
    assert_eq!(declared("struct"), structs().len() + OPAQUE);
    assert_eq!(declared("const"), constants().len());
    assert_eq!(declared("type"), functions().len());
    let pointers = include_str!("../abi.rs").matches("Option<unsafe extern").count();
    assert_eq!(pointers, slots().len());
}

/// Where the headers (libibverbs-dev) are installed, the C compiler evaluates the expressions.
#[test]
fn the_numbers_are_those_of_the_installed_headers() {
    if !Path::new("/usr/include").join(HEADER).exists() {
        return skipped(&format!("{HEADER} is not installed"));
    }
    let mut table: Vec<(String, usize)> = Vec::new();
    let mut at_least = Vec::new();
    for one in structs() {
        let name = one.name;
        table.push((format!("_Alignof({name})"), one.align));
        let sizes = if one.is_start { &mut at_least } else { &mut table };
        sizes.push((format!("sizeof({name})"), one.size));
        let offset = |field: &str| format!("offsetof({name}, {field})");
        table.extend(one.fields.iter().map(|field| (offset(field.name), field.offset)));
    }
    table.extend(constants().iter().map(|constant| (constant.name.to_owned(), constant.value)));
    let exact = table.len();
    table.append(&mut at_least);

    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("abi.c"), folder.path().join("abi"));
    let mut text = format!("#include <stddef.h>\n#include <stdio.h>\n#include <{HEADER}>\n");
    text.push_str("int main(void) {\n");
    for (expression, _) in &table {
        text.push_str(&format!("printf(\"%zu\\n\", (size_t)({expression}));\n"));
    }
    text.push_str("return 0; }\n");
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&program).status().unwrap();
    assert!(compiled.success());
    let printed = String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();
    let numbers: Vec<usize> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers.len(), table.len());
    for (index, ((expression, own), number)) in table.iter().zip(numbers).enumerate() {
        if index < exact {
            assert_eq!(*own, number, "{expression}");
        } else {
            assert!(*own <= number, "{expression}: {own} B, in the header {number} B");
        }
    }
}
