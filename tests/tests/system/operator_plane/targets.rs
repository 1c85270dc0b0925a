//! M: methods, targets, routes.

use system_tests::needs_root;
use system_tests::plane::{Expect, Table, file, get, listing, refused, request, row, with_headers};

use super::{in_every_class, serve, shelf};

fn list_refused(code: &str) -> Expect {
    Expect::ListRefused(code.to_owned())
}

fn raw(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

#[test]
fn methods_targets_and_routes() {
    needs_root!();
    in_every_class(
        |shelf| {
            shelf.file("r\u{e9}sum\u{e9}.txt", b"by its own bytes\n");
        },
        |shelf, table| {
            let none = || Expect::Plain(404);
            let not_allowed = |path: &str| refused("method_not_allowed", path);
            let unknown = |path: &str| refused("not_found", path);
            table.check_all(&[
                row("M1", get("/resources/files"), listing(&["report.md", "r\u{e9}sum\u{e9}.txt"])),
                row("M2", get("f/report.md"), file("report.md")),
                row("M4", request("HEAD", "/resources/files"), list_refused("method_not_allowed")),
                row("M4 on a file", request("HEAD", "f/report.md"), not_allowed("report.md")),
                row("M5", request("OPTIONS", "f/report.md"), not_allowed("report.md")),
                row("M6", request("OPTIONS", "*"), none()),
                row(
                    "M7",
                    with_headers("POST", "f/report.md", "Content-Length: 10737418240\r\n"),
                    not_allowed("report.md"),
                ),
                row(
                    "M7 chunked",
                    with_headers("POST", "f/report.md", "Transfer-Encoding: chunked\r\n"),
                    not_allowed("report.md"),
                ),
                row("M8", request("PUT", "f/new.txt"), not_allowed("new.txt")),
                row("M8", request("PATCH", "f/new.txt"), not_allowed("new.txt")),
                row("M8", request("DELETE", "f/report.md"), not_allowed("report.md")),
                row("M9", request("MKCOL", "f/d"), not_allowed("d")),
                row("M9", request("PROPFIND", "/resources/files"), list_refused("method_not_allowed")),
                row("M9", request("TRACE", "f/report.md"), not_allowed("report.md")),
                row("M9", request("FOO", "f/report.md"), not_allowed("report.md")),
                row("M9 case", request("get", "f/report.md"), not_allowed("report.md")),
                row("M9 unrouted", request("PUT", "/resources/unknown"), not_allowed("unknown")),
                row("M9 before P2", request("POST", "f/../secret.txt"), not_allowed("../secret.txt")),
                row("M11", request("CONNECT", "f/report.md"), not_allowed("report.md")),
                row("M12", request("CONNECT", "host:443"), none()),
                row("M16", get("/resources/"), unknown("")),
                row("M17", get("/resources"), none()),
                row("M18", request("POST", "/resources"), none()),
                row("M19", get("/resources/unknown"), unknown("unknown")),
                row("M19", get("/resources/filesX"), unknown("filesX")),
                row("M19", get("/resources/files../secret.txt"), unknown("files../secret.txt")),
                row("M24", get("/Resources/files"), none()),
                row("M24", get("/resources/FILES"), unknown("FILES")),
                row("M25", get("//resources/files"), none()),
                row("M26", get("/resources//files"), unknown("/files")),
                row("M27", get("/resources/./files"), unknown("./files")),
                row("M27", get("/x/../resources/files"), none()),
                row("M28", get("/%72esources/files"), none()),
                row("M28", get("/resources/%66iles"), unknown("files")),
                row("M29", get("/resources/files%2Freport.md"), unknown("files/report.md")),
                row("M30", get("/resources%2Ffiles"), none()),
                row("M31", get("http://any.host:1/resources/files/report.md"), file("report.md")),
                row("M32", get("http://h/../resources/files"), none()),
                row("M34", get("f/report.md?"), file("report.md")),
                row("M34", get("f/report.md?a=/../.."), file("report.md")),
                row("M34", get("f/report.md?%00"), file("report.md")),
                row("M35", get("/resources/files?path=x"), listing(&["report.md", "r\u{e9}sum\u{e9}.txt"])),
                row("M36", get("f/report.md%3Fx"), unknown("report.md?x")),
                row("M37", get("f/report.md#top"), unknown("report.md#top")),
                row("M38", get("f/report.md%23top"), unknown("report.md#top")),
                row("M39", raw("GET /resources/files/report.md HTTP/1.0\r\n\r\n"), file("report.md")),
                row("M40", with_headers("GET", "f/report.md", "Range: bytes=0-1\r\n"), file("report.md")),
                row("M42", with_headers("GET", "f/report.md", "Accept: text/plain\r\n"), file("report.md")),
                row(
                    "M42",
                    with_headers("GET", "f/report.md", "Accept-Encoding: gzip\r\n"),
                    file("report.md"),
                ),
                row(
                    "M43",
                    [with_headers("GET", "f/report.md", "Content-Length: 5\r\n"), raw("12345")].concat(),
                    file("report.md"),
                ),
                row(
                    "M43",
                    with_headers("GET", "f/report.md", "Content-Length: 5\r\nExpect: 100-continue\r\n"),
                    file("report.md"),
                ),
                row(
                    "one request a connection",
                    [get("f/report.md"), get("f/report.md")].concat(),
                    file("report.md"),
                ),
                row("M45", get(&format!("f/{}", "a".repeat(20_000))), Expect::Plain(414)),
                row(
                    "M46 lines",
                    with_headers("GET", "f/report.md", &"a: b\r\n".repeat(10_000)),
                    Expect::Plain(431),
                ),
                row(
                    "M46 one header",
                    with_headers("GET", "f/report.md", &format!("a: {}\r\n", "b".repeat(1 << 20))),
                    Expect::Plain(431),
                ),
                row("M48 text", get("f/r\u{e9}sum\u{e9}.txt"), file("r\u{e9}sum\u{e9}.txt")),
                row(
                    "M48 no text",
                    b"GET /resources/files/\xff HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(),
                    Expect::Plain(400),
                ),
            ]);
            if let Some(etag) = etag(table) {
                let headers = format!("If-None-Match: {etag}\r\n");
                table.check(&row("M41", with_headers("GET", "f/report.md", &headers), file("report.md")));
            }
            assert!(!shelf.at("new.txt").exists(), "M8: created");
            assert!(shelf.at("report.md").exists(), "M8: deleted");
        },
    );
}

/// The etag a conditional request would carry.
fn etag(table: &mut Table<'_>) -> Option<String> {
    let known = system_tests::programs::sha256(b"hello\n");
    table.check(&row("M41 before", get("f/report.md"), file("report.md")));
    Some(format!("\"sha256:{known}\""))
}

#[test]
fn without_a_declaration_there_is_no_plane() {
    needs_root!();
    for class in super::classes() {
        let declared = "exports:\n  files:\n    root: out/\n    max_bytes: 1024\n    mode: read-only\n";
        let capsule = shelf(class).with(declared, "exports: {}\n");
        let mut session = serve(&capsule);
        let mut table = Table::new(&session, "", 0);
        table.check_all(&[
            row("B1", get("/resources/files"), list_refused("no_resource_plane")),
            row("B1", get("f/report.md"), refused("no_resource_plane", "report.md")),
            row("M13", request("PUT", "f/report.md"), refused("method_not_allowed", "report.md")),
            row("M13", request("HEAD", "/resources/files"), list_refused("method_not_allowed")),
            row("M21", get("/resources/unknown"), refused("not_found", "unknown")),
            row("D42", get("f/../x"), refused("no_resource_plane", "../x")),
            row("D42 empty", get("/resources/files/"), refused("no_resource_plane", "")),
        ]);
        table.finish();
        session.stop();
    }
}
