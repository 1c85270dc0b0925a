//! D: decoding and path validation.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use system_tests::needs_root;
use system_tests::plane::{Expect, file, get, refused, row};

use super::in_every_class;

/// Names that are files as they stand.
const NAMES: [&str; 13] = [
    "100%",
    "a%25b",
    "...",
    "..a",
    "a..",
    ".hidden",
    "a+b",
    "plain",
    "caf\u{e9}",
    "a\nb",
    "sub/report.md",
    "a/b",
    "\u{1f600}",
];

#[test]
fn decoding_and_validation_of_paths() {
    needs_root!();
    in_every_class(
        |shelf| {
            for name in NAMES {
                shelf.file(name, name.as_bytes());
            }
            // D15: there, by bytes that no request can name.
            std::fs::write(shelf.at("").join(OsStr::from_bytes(b"caf\xe9")), b"latin 1").unwrap();
        },
        |_, table| {
            let outside = |path: &str| refused("outside_root", path);
            let missing = |path: &str| refused("not_found", path);
            table.check_all(&[
                row("D1", get("f/../secret.txt"), outside("../secret.txt")),
                row("D2", get("f/%2e%2e/secret.txt"), outside("../secret.txt")),
                row("D2", get("f/%2E%2E%2Fsecret.txt"), outside("../secret.txt")),
                row("D2", get("f/.%2e/x"), outside("../x")),
                row("D2", get("f/%2e./x"), outside("../x")),
                row("D2", get("f/..%2fx"), outside("../x")),
                row("D2", get("f/.."), outside("..")),
                row("D3", get("f/sub/../report.md"), outside("sub/../report.md")),
                row("P2 .", get("f/./report.md"), outside("./report.md")),
                row("P2 .", get("f/%2e"), outside(".")),
                row("D5", get("f/a//b"), outside("a//b")),
                row("D5", get("f/a%2F%2Fb"), outside("a//b")),
                row("D6", get("f//etc/passwd"), outside("/etc/passwd")),
                row("D6", get("f/%2Fetc%2Fpasswd"), outside("/etc/passwd")),
                row("D7", get("f//report.md"), outside("/report.md")),
                row("D8", get("/resources/files/"), outside("")),
                row("D10", get("f/report.md/"), outside("report.md/")),
                row("D10", get("f/sub/"), outside("sub/")),
                row("D12", get("f/report.md%2F"), outside("report.md/")),
                row("P2 NUL", get("f/report.md%00"), outside("report.md\0")),
                row("P2 NUL", get("f/report.md%00.txt"), outside("report.md\0.txt")),
                row("P2 NUL", get("f/missing/%00"), outside("missing/\0")),
                row("D14", get("f/%ff"), outside("\u{fffd}")),
                row("D14, D15", get("f/caf%E9"), outside("caf\u{fffd}")),
                row(
                    "D16",
                    get("f/%c0%ae%c0%ae%c0%afsecret.txt"),
                    outside(&format!("{}secret.txt", "\u{fffd}".repeat(6))),
                ),
                row("D17", get("f/%ed%a0%80"), outside("\u{fffd}\u{fffd}\u{fffd}")),
                row("D18", get("f/%252e%252e%252fsecret.txt"), missing("%2e%2e%2fsecret.txt")),
                row("D19", get("f/a%2525b"), file("a%25b")),
                row("D20", get("f/sub%2Freport.md"), file("sub/report.md")),
                row("P1", get("f/%72%65port.md"), file("report.md")),
                row("P1", get("f/%f0%9f%98%80"), file("\u{1f600}")),
                row("D21", get("f/100%"), file("100%")),
                row("D21", get("f/100%25"), file("100%")),
                row("D22", get("f/%zz"), missing("%zz")),
                row("D22", get("f/%4"), missing("%4")),
                row("D22", get("f/a%"), missing("a%")),
                row("D23", get("f/%+2e"), missing("%+2e")),
                row("D23", get("f/%+f"), missing("%+f")),
                row("D23", get("f/%-1"), missing("%-1")),
                // A raw space ends the target.
                row("D23", get("f/% 2"), Expect::Plain(400)),
                row("D23", get("f/%%202"), missing("% 2")),
                row("D25", get("f/a%5C..%5Csecret.txt"), missing("a\\..\\secret.txt")),
                row("D25", get("f/..\\secret.txt"), missing("..\\secret.txt")),
                row("D26", get("f/C:%5Cx"), missing("C:\\x")),
                row("D26", get("f/~root"), missing("~root")),
                row("D26", get("f/$HOME"), missing("$HOME")),
                row("D27", get("f/..."), file("...")),
                row("D27", get("f/..a"), file("..a")),
                row("D27", get("f/a.."), file("a..")),
                row("D28", get("f/.hidden"), file(".hidden")),
                row("D29", get("f/a+b"), file("a+b")),
                row("D29", get("f/a%20b"), missing("a b")),
                row("D31", get("f/plain;v=1"), missing("plain;v=1")),
                row("D33", get("f/cafe%CC%81"), missing("cafe\u{301}")),
                row("D33", get("f/caf%C3%A9"), file("caf\u{e9}")),
                row("D34", get("f/REPORT.MD"), missing("REPORT.MD")),
                row("D35", get("f/a%0Ab"), file("a\nb")),
                row("D35", get("f/a%0D%0AX:y"), missing("a\r\nX:y")),
                row("D36", get(&format!("f/{}", "n".repeat(256))), missing(&"n".repeat(256))),
                row(
                    "D36",
                    get(&format!("f/{}/x", "n".repeat(300))),
                    missing(&format!("{}/x", "n".repeat(300))),
                ),
                row(
                    "D38",
                    get(&format!("f/{}x", "a/".repeat(2000))),
                    missing(&format!("{}x", "a/".repeat(2000))),
                ),
                // D44: what is recorded ends at 4096 bytes, on a character's boundary.
                row(
                    "D37, D44",
                    get(&format!("f/{}x", "short/".repeat(850))),
                    missing(&"short/".repeat(850)[..4096]),
                ),
                row("D38, D44", get(&format!("f/{}a", "a/".repeat(4999))), missing(&"a/".repeat(2048))),
                row("D44", get(&format!("f/{}", "\u{e9}".repeat(3000))), missing(&"\u{e9}".repeat(2048))),
                row(
                    "D44",
                    get(&format!("f/a{}", "\u{e9}".repeat(3000))),
                    missing(&format!("a{}", "\u{e9}".repeat(2047))),
                ),
                row(
                    "D44",
                    get(&format!("f/../{}", "b".repeat(5000))),
                    outside(&format!("../{}", "b".repeat(4093))),
                ),
                row("D39", get("f/report.md/x"), missing("report.md/x")),
                row("D41", get("f/out/report.md"), missing("out/report.md")),
            ]);
        },
    );
}

#[test]
fn a_path_is_validated_before_anything_is_looked_up() {
    needs_root!();
    in_every_class(
        |shelf| std::fs::remove_dir_all(shelf.at("")).unwrap(),
        |_, table| {
            table.check_all(&[
                row("D43", get("f/../x"), refused("outside_root", "../x")),
                row("D43", get("f/a//b"), refused("outside_root", "a//b")),
                row("R2", get("f/x"), refused("not_found", "x")),
            ]);
        },
    );
}
