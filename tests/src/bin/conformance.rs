//! The table of ways out, per class, on this host: what each had to see and what it saw. Exit status: 0 nothing got out, 1 usage,
//! 2 this host cannot be graded, 3 something got out.

use std::process::ExitCode;

use system_tests::conformance;
use system_tests::host;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let classes: Vec<&'static str> = match arguments.as_slice() {
        [] => vec!["sealed", "scoped"],
        [class] if class == "sealed" => vec!["sealed"],
        [class] if class == "scoped" => vec!["scoped"],
        _ => {
            eprintln!("conformance [sealed|scoped]");
            return ExitCode::from(1);
        }
    };
    if !host::is_root() {
        eprintln!("not graded: needs root: the broker makes namespaces, mounts and users of its own");
        return ExitCode::from(2);
    }
    let mut escapes = 0;
    for class in classes {
        let Some(rows) = conformance::graded(class) else { return ExitCode::from(2) };
        for row in &rows {
            println!("{row}");
        }
        escapes += rows.iter().filter(|row| !row.is_met()).count();
    }
    println!("{escapes} cases saw something else than they had to");
    if escapes == 0 { ExitCode::SUCCESS } else { ExitCode::from(3) }
}
