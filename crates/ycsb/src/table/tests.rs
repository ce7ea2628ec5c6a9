//! The layout of the table.

use super::*;
use crate::memory_store::MemoryStores;
use crate::{Progress, WorkloadName, YcsbOptions, run};

fn session(no_load: bool) -> Session {
    let options = YcsbOptions {
        workloads: WorkloadName::ALL.to_vec(),
        records: 1000,
        operations: 2000,
        no_load,
        verify: true,
        ..YcsbOptions::default()
    };
    run(&options.plan().unwrap(), &MemoryStores::default(), Progress::new(true)).unwrap()
}

#[test]
fn columns_are_aligned_and_plain_text_has_no_escapes() {
    let text = render(&session(false), Style::Plain);
    assert!(!text.contains('\x1b'));
    assert!(
        text.starts_with("YCSB, a map in memory: 1,000 records of 64 B, 4 threads in 2 racks\n")
    );
    let rule = text.lines().find(|line| line.starts_with('─')).unwrap().chars().count();
    let rows: Vec<_> = text.lines().skip(2).take_while(|line| !line.starts_with("F: ")).collect();
    for row in &rows {
        assert_eq!(row.chars().count(), rule, "{row:?}");
    }
    for start in
        ["load  insert", "A     update heavy, zipfian 0.99       all", "D     read latest  "]
    {
        assert!(rows.iter().any(|row| row.starts_with(start)), "{start}:\n{text}");
    }
}

#[test]
fn colours_change_no_letter() {
    let session = session(false);
    let plain = render(&session, Style::Plain);
    let mut coloured = render(&session, Style::Coloured);
    for escape in ["1", "2", "31", "0"] {
        coloured = coloured.replace(&format!("\x1b[{escape}m"), "");
    }
    let trimmed = |text: &str| text.lines().map(|l| l.trim_end().to_owned()).collect::<Vec<_>>();
    assert_eq!(trimmed(&coloured), trimmed(&plain));
}

#[test]
fn problems_stand_below() {
    let text = render(&session(true), Style::Plain);
    assert!(text.lines().any(|line| line.starts_with("error: A: ")), "{text}");
}
