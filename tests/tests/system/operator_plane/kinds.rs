//! F: kinds of files, and sizes.

use std::fs::{self, File};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{FileType, makedev};
use system_tests::plane::{file, get, refused, row};
use system_tests::{host, needs_root};

use super::in_every_class;

#[test]
fn kinds_and_sizes_of_files() {
    needs_root!();
    in_every_class(
        |shelf| {
            shelf.file("sub/x", b"x\n");
            shelf.socket("socket");
            shelf.node("fifo", FileType::Fifo, 0).unwrap();
            shelf.node("closed-fifo", FileType::Fifo, 0).unwrap();
            shelf.mode("closed-fifo", 0);
            for (name, kind, device) in [
                ("zero", FileType::CharacterDevice, makedev(1, 5)),
                ("tty", FileType::CharacterDevice, makedev(5, 0)),
                ("no-driver", FileType::CharacterDevice, makedev(511, 77)),
                ("block", FileType::BlockDevice, makedev(7, 0)),
                ("no-block-driver", FileType::BlockDevice, makedev(511, 77)),
            ] {
                if let Err(error) = shelf.node(name, kind, device) {
                    host::say_not_run("F4, F5", &format!("cannot make a device: {error}"));
                }
            }
            shelf.file("unreadable", b"closed\n");
            shelf.file("unsearchable/x", b"closed\n");
            shelf.file("unlistable/x", b"open to who knows the name\n");
            shelf.file("empty", b"");
            shelf.file("exact", &[b'x'; 1024]);
            shelf.file("larger", &[b'x'; 1025]);
            shelf.file("sparse", b"");
            File::options().write(true).open(shelf.at("sparse")).unwrap().set_len(1 << 40).unwrap();
            shelf.file("page.html", b"<p>");
            shelf.file("setuid", b"#!/bin/sh\n");
            for (name, time) in [
                ("y1969", UNIX_EPOCH - Duration::from_secs(86_400)),
                ("just-before-1970", UNIX_EPOCH - Duration::from_nanos(1)),
                ("fraction", UNIX_EPOCH + Duration::from_nanos(1_787_577_327_015_999_999)),
                ("y2500", UNIX_EPOCH + Duration::from_secs(16_725_225_600)),
            ] {
                shelf.file(name, name.as_bytes());
                let file = File::options().write(true).open(shelf.at(name)).unwrap();
                file.set_modified(time).unwrap();
            }
            shelf.mode("setuid", 0o4755);
            shelf.mode("unreadable", 0);
            shelf.mode("unsearchable", 0o600);
            shelf.mode("unlistable", 0o300);
        },
        |shelf, table| {
            let odd = |path: &str| refused("not_a_regular_file", path);
            table.check_all(&[
                row("F1", get("f/sub"), odd("sub")),
                row("F1 below", get("f/sub/x"), file("sub/x")),
                row("F3", get("f/socket"), odd("socket")),
                row("F6", get("f/fifo"), odd("fifo")),
                row("F6", get("f/closed-fifo"), odd("closed-fifo")),
                row("F7", get("f/unreadable"), refused("io_error", "unreadable")),
                row("F9", get("f/unsearchable/x"), refused("io_error", "unsearchable/x")),
                row("F9", get("f/unsearchable/missing"), refused("io_error", "unsearchable/missing")),
                row("F9 itself", get("f/unsearchable"), odd("unsearchable")),
                row("F9 not readable", get("f/unlistable/x"), file("unlistable/x")),
                row("F11 empty", get("f/empty"), file("empty")),
                row("F11", get("f/exact"), file("exact")),
                row("F11 larger", get("f/larger"), refused("too_large", "larger")),
                row("F13", get("f/sparse"), refused("too_large", "sparse")),
                row("F19", get("f/y1969"), file("y1969")),
                row("F19", get("f/just-before-1970"), file("just-before-1970")),
                row("F20", get("f/fraction"), file("fraction")),
                row("F21", get("f/y2500"), file("y2500")),
                row("F22", get("f/setuid"), file("setuid")),
                row("F22", get("f/page.html"), file("page.html")),
            ]);
            for name in ["zero", "tty", "no-driver", "block", "no-block-driver"] {
                if shelf.at(name).symlink_metadata().is_ok() {
                    table.check(&row("F4, F5", get(&format!("f/{name}")), odd(name)));
                }
            }
            fs::remove_file(shelf.at("empty")).unwrap();
            table.check(&row("HD2", get("f/empty"), refused("not_found", "empty")));
        },
    );
}
