//! Every way out that a program may try, from inside, in the classes that promise something.

use std::path::Path;

use system_tests::conformance::{self, CASES, Stage};
use system_tests::ordinary::Delegated;
use system_tests::{host, needs_root, not_run};

#[test]
fn no_program_of_class_sealed_gets_out() {
    needs_root!();
    grade("sealed", None);
}

#[test]
fn no_program_of_class_scoped_gets_out() {
    needs_root!();
    grade("scoped", None);
}

/// Where programs have the id of everything around them.
#[test]
fn no_program_of_an_ordinary_users_session_gets_out() {
    needs_root!();
    match Delegated::new() {
        Ok(delegated) => ["sealed", "scoped"].map(|class| grade(class, Some(delegated.path()))),
        Err(why) => not_run!("{why}"),
    };
}

/// A probe that reports nothing but refusals would pass every case.
#[test]
fn the_probe_says_so_where_a_way_out_is_open() {
    needs_root!();
    if !host::takes_id_maps() {
        not_run!(
            "the filesystem of temporary folders takes no id-mapped mounts, without which advisory is refused"
        );
    }
    let stage = Stage::new("advisory", None);
    let open = [
        "read the host's accounts",
        "see that a file of the host exists",
        "list the root",
        "list what lies above the workdir",
        "read through a symbolic link of one's own",
        "execute a program that is not allowed",
    ];
    let cases = CASES.iter().enumerate().filter(|(_, case)| open.contains(&case.name));
    let rows: Vec<_> = cases.map(|(number, case)| stage.try_case(number, *case)).collect();
    assert_eq!(rows.len(), open.len(), "every name is a case");
    for row in rows {
        assert!(row.seen.starts_with("done "), "{}: {}", row.case.name, row.seen);
    }
    stage.end();
}

fn grade(class: &'static str, group: Option<&Path>) {
    let rows = conformance::run(class, group);
    for row in &rows {
        println!("{row}");
    }
    let failed: Vec<String> = rows.iter().filter(|row| !row.is_met()).map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
