//! The root of handles before, at and after launch: what is minted and what is redeemed goes by the disk as it is.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::handle::{Handle, redeem, unique};
use system_tests::temporary::{self, OWNER};
use system_tests::trace::Trace;
use system_tests::{a2a, http, needs_root};

use super::Lines;
use crate::operator_plane::classes;

/// What lies where the root leads must never be served.
const ELSEWHERE: &[u8] = b"not for the plane\n";

/// A session with one handle for `report.md`, and what becomes of it.
struct Held<'s> {
    class: &'static str,
    session: &'s Session,
    lines: Lines<'s>,
    handle: Option<Handle>,
}

impl Held<'_> {
    /// A mint now and, if there is a handle, a redeem now are refused with these codes.
    fn is_refused(&self, what: &str, code: &str) {
        let what = format!("{what}, {}", self.class);
        let own = http::authority(self.session.url());
        let task = a2a::complete(self.session.url(), &unique("task"), &format!("Hand report.md to {own}"));
        assert!(a2a::answer(&task).contains(code), "{what}: {}", a2a::answer(&task));
        let trace = Trace::read(&self.session.records());
        let mint = *trace.of("peer_handle_mint").last().unwrap();
        assert_eq!((&mint["outcome"], &mint["path"]), (&code.into(), &"report.md".into()), "{what}: {mint}");
        assert!(mint["handle_id"].is_null() && mint["expires_at_ms"].is_null(), "{what}: {mint}");
        if let Some(handle) = &self.handle {
            let refused = redeem(self.session.url(), &handle.token, &handle.audience);
            assert_eq!(refused.error(), code, "{what}");
            let line = self.lines.next();
            assert_eq!(
                (&line["outcome"], &line["path"]),
                (&code.into(), &"report.md".into()),
                "{what}: {line}"
            );
        }
    }

    /// The handle serves this, and so does one minted now.
    fn serves(&mut self, what: &str, content: &[u8]) {
        let what = format!("{what}, {}", self.class);
        let new = Handle::mint_for_itself(self.session, "report.md");
        let payload = new.payload();
        assert!(payload.contains("\"p\":\"report.md\""), "{what}: {payload}");
        for handle in self.handle.iter().chain([&new]) {
            let served = redeem(self.session.url(), &handle.token, &handle.audience);
            assert_eq!((served.status, served.body.as_slice()), (200, content), "{what}");
            assert_eq!(served.header("x-murmur-export-root"), None, "{what}");
            assert_eq!(self.lines.next()["outcome"], "ok", "{what}");
        }
        self.handle.get_or_insert(new);
    }
}

/// R1 to R5, R8, R9, R11, R14, R16, K16: absent at launch, created, removed, recreated, another kind, unreadable, a link.
#[test]
fn the_root_comes_goes_and_is_replaced_under_handles_that_stay() {
    needs_root!();
    for class in classes() {
        let capsule = Capsule::handoff("writer")
            .with("root: out/", "root: share/")
            .with("capabilities:\n", &format!("capabilities:\n  containment: {class}\n"));
        temporary::write(capsule.folder(), "report.md", ELSEWHERE);
        capsule.write("real/report.md", b"real\n");
        let mut session = Launch::of(&capsule).start();
        let lines = Lines::of(&session);
        let mut held = Held { class, session: &session, lines, handle: None };
        let (root, kept) = (capsule.work().join("share"), capsule.work().join("kept"));
        held.is_refused("absent at launch", "not_found");
        capsule.write("share/report.md", b"first\n");
        held.serves("created", b"first\n");

        fs::rename(&root, &kept).unwrap();
        held.is_refused("removed", "not_found");
        capsule.write("share/other.md", b"other\n");
        held.is_refused("recreated without the file", "not_found");
        capsule.write("share/report.md", b"second\n");
        held.serves("recreated with another file", b"second\n");
        fs::remove_dir_all(&root).unwrap();

        fs::write(&root, "a file").unwrap();
        temporary::give(&root, OWNER);
        held.is_refused("a file in its place", "not_found");
        fs::remove_file(&root).unwrap();
        fs::rename(&kept, &root).unwrap();
        held.serves("back", b"first\n");

        fs::set_permissions(&root, Permissions::from_mode(0o000)).unwrap();
        held.is_refused("mode 0", "io_error");
        fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
        held.serves("mode 755", b"first\n");

        fs::rename(&root, &kept).unwrap();
        for target in ["/", "..", "../", "/nonexistent", "../work/../", "/tmp", "../work-else"] {
            symlink(target, &root).unwrap();
            held.is_refused(&format!("a link to {target}"), "outside_root");
            fs::remove_file(&root).unwrap();
        }
        for target in ["real", "./real", "real/.", "kept/../real"] {
            symlink(target, &root).unwrap();
            held.serves(&format!("a link to {target}"), b"real\n");
            fs::remove_file(&root).unwrap();
        }
        for target in ["share", "nothing"] {
            symlink(target, &root).unwrap();
            held.is_refused(&format!("a link to {target}"), "not_found");
            fs::remove_file(&root).unwrap();
        }
        fs::rename(&kept, &root).unwrap();
        held.serves("back at last", b"first\n");
        session.stop();
    }
}

/// R8, R9: a root that is a link at launch, inside the workdir or to nothing.
#[test]
fn a_root_that_is_a_link_at_launch_is_a_root_or_is_guarded() {
    needs_root!();
    for class in classes() {
        let capsule = || {
            Capsule::handoff("writer")
                .with("root: out/", "root: share/")
                .with("capabilities:\n", &format!("capabilities:\n  containment: {class}\n"))
        };
        let inside = capsule();
        inside.write("real/report.md", b"real\n");
        symlink("./real", inside.work().join("share")).unwrap();
        symlink("report.md", inside.work().join("real/alias")).unwrap();
        let mut session = Launch::of(&inside).start();
        let lines = Lines::of(&session);
        Held { class, session: &session, lines, handle: None }.serves("a link inside", b"real\n");
        // T10: what a handle names is the file, not the way to it; where links are refused there is no handle.
        let own = http::authority(session.url());
        let task = a2a::complete(session.url(), &unique("task"), &format!("Hand alias to {own}"));
        if class == "scoped" {
            assert!(a2a::answer(&task).contains("symlink_refused"), "{}", a2a::answer(&task));
        } else {
            let handle = Handle::mint_for_itself(&session, "alias");
            assert!(handle.payload().contains("\"p\":\"report.md\""), "{}", handle.payload());
        }
        session.stop();

        let dangling = capsule();
        symlink("/nonexistent", dangling.work().join("share")).unwrap();
        let mut session = Launch::of(&dangling).start();
        let lines = Lines::of(&session);
        Held { class, session: &session, lines, handle: None }
            .is_refused("a link to nothing", "outside_root");
        session.stop();
    }
}

/// R12: the workdir is the one that was opened at launch.
#[test]
fn a_workdir_replaced_after_launch_is_never_the_new_place() {
    needs_root!();
    for class in classes() {
        let capsule = Capsule::handoff("writer")
            .with("capabilities:\n", &format!("capabilities:\n  containment: {class}\n"));
        capsule.write("out/report.md", b"hello\n");
        let mut session = Launch::of(&capsule).start();
        let handle = Handle::mint_for_itself(&session, "report.md");
        let (work, moved) = (capsule.work(), capsule.folder().join("moved"));
        temporary::write(capsule.folder(), "elsewhere/out/report.md", ELSEWHERE);
        fs::rename(&work, &moved).unwrap();
        symlink(capsule.folder().join("elsewhere"), &work).unwrap();
        assert_eq!(redeem(session.url(), &handle.token, &handle.audience).body, b"hello\n");
        fs::remove_file(&work).unwrap();
        fs::rename(&moved, &work).unwrap();
        session.stop();
    }
}
