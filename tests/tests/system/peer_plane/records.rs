//! The three lines of the peer plane, key by key: which, in which order, and what is there where there is nothing to say.

use std::fs;

use serde_json::{Value, json};
use system_tests::broker::Launch;
use system_tests::capsule::Capsule;
use system_tests::handle::{Handle, redeem, redeem_request, unique};
use system_tests::trace::Trace;
use system_tests::{a2a, http, needs_root, programs};

use super::{Lines, answer, id};

/// The keys of every line, before and after those of its kind.
const FIRST: [&str; 5] = ["event_type", "event_id", "parent_id", "session_id", "timestamp"];
const LAST: &str = "process";

/// The lines of one kind as they stand in the file, each with the values that it must have after the first keys.
fn compare(trace: &Trace, kind: &str, keys: &[&str], expected: &[Vec<Value>]) {
    let session = &trace.of("session_start")[0]["event_id"];
    let start = format!("{{\"event_type\":\"{kind}\",");
    let lines: Vec<&str> = trace.text().lines().filter(|line| line.starts_with(&start)).collect();
    assert_eq!(lines.len(), expected.len(), "{kind}: {lines:#?}");
    for (line, values) in lines.into_iter().zip(expected) {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(&event["parent_id"], session, "a child of the session: {line}");
        assert!(event[LAST].is_string(), "{line}");
        // A parser forgets the order and whether a key is there: so the line is put together anew, as it must be.
        let own = keys.iter().copied().zip(values.iter().cloned());
        let common = |key: &'static str| (key, event[key].clone());
        let all = FIRST.into_iter().map(common).chain(own).chain([common(LAST)]);
        let whole: Vec<String> = all.map(|(key, value)| format!("{}:{value}", Value::from(key))).collect();
        assert_eq!(line, format!("{{{}}}", whole.join(",")));
    }
}

const MINT: [&str; 6] = ["handle_id", "path", "audience", "expires_at_ms", "outcome", "reason"];
const REDEEM: [&str; 8] =
    ["handle_id", "path", "generation", "audience_asserted", "bytes", "sha256", "outcome", "reason"];
const FETCH: [&str; 7] = ["peer", "handle_id", "stored_path", "bytes", "sha256", "outcome", "reason"];

fn reason(response: &http::Response) -> Value {
    response.json()["message"].clone()
}

#[test]
fn every_line_has_its_keys_in_order_and_null_where_there_is_nothing() {
    needs_root!();
    let writer = super::capsule();
    writer.write("share/a \"b\"\u{e9}\\.md", b"odd\n");
    let (mut writing, reader) = (Launch::of(&writer).start(), Capsule::handoff("reader"));
    let mut reading = Launch::of(&reader).start();
    let url = writing.url().to_owned();
    let (from, to) = (http::authority(&url).to_owned(), http::authority(reading.url()).to_owned());
    let null = || Value::Null;

    // Mints: served, canonical, refused before and after the card was read.
    let handle = Handle::mint(&writing, "report.md", &to);
    let odd = Handle::mint(&writing, "a%20%22b%22%C3%A9%5C.md", &to);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for task in [
        format!("Hand none.md to {to}"),
        format!("Hand report.md to {closed}"),
        format!("Hand %2e%2e/x to {closed}"),
    ] {
        a2a::complete(&url, &unique("task"), &task);
    }
    let token = |handle: &Handle| json!(id(&handle.token));
    let expires = |handle: &Handle| serde_json::from_str::<Value>(&handle.payload()).unwrap()["exp"].clone();
    let audience = json!(format!("reader@{to}"));

    // Redeems, one of each kind of line.
    let lines = Lines::of(&writing);
    let mut redeems = Vec::new();
    let served = redeem(&url, &handle.token, &handle.audience);
    let hash = |bytes: &[u8]| json!(programs::sha256sum_of(bytes));
    redeems.push(vec![
        token(&handle),
        json!("report.md"),
        json!(5),
        audience.clone(),
        json!(6),
        hash(b"hello\n"),
        json!("ok"),
        null(),
    ]);
    assert_eq!(served.body, b"hello\n");
    lines.next();
    let served = redeem(&url, &odd.token, &odd.audience.to_ascii_uppercase());
    assert_eq!(served.body, b"odd\n");
    lines.next();
    redeems.push(vec![
        token(&odd),
        json!("a \"b\"\u{e9}\\.md"),
        json!(5),
        json!(odd.audience.to_ascii_uppercase()),
        json!(4),
        hash(b"odd\n"),
        json!("ok"),
        null(),
    ]);
    let header = format!("x-murmur-audience: {}", handle.audience);
    let own = header.as_str();
    let other = "x-murmur-audience: third@h:1";
    let good = format!("/{}", handle.token);
    let nothing = json!("e3b0c44298fc1c14");
    let of = |text: &str| json!(id(text));
    for (method, target, headers, handle_id, asserted, code) in [
        ("GET", String::new(), vec![own], nothing.clone(), audience.clone(), "not_found"),
        ("GET", "/".into(), vec![], nothing, null(), "not_found"),
        ("GET", "/x".into(), vec![own], of("x"), audience.clone(), "malformed_handle"),
        ("GET", good.clone(), vec![], of(&handle.token), null(), "missing_audience"),
        ("GET", good.clone(), vec![other], of(&handle.token), json!("third@h:1"), "handle_not_valid"),
        ("PUT", good.clone(), vec![own], of(&handle.token), audience.clone(), "method_not_allowed"),
    ] {
        let refused = answer(&writing, &redeem_request(method, &target, &headers));
        assert_eq!(refused.error(), code, "{method} {target}");
        lines.next();
        redeems.push(vec![
            handle_id,
            null(),
            json!(5),
            asserted,
            null(),
            null(),
            json!(code),
            reason(&refused),
        ]);
    }
    fs::remove_file(writer.work().join("share/report.md")).unwrap();
    let refused = redeem(&url, &handle.token, &handle.audience);
    redeems.push(vec![
        token(&handle),
        json!("report.md"),
        json!(5),
        audience.clone(),
        null(),
        null(),
        json!("not_found"),
        reason(&refused),
    ]);
    lines.next();

    // Fetches: refused by the peer, by the list, by nobody there; served.
    writer.write("share/report.md", b"hello\n");
    let mut fetches = Vec::new();
    for (peer, task, handle, code) in [
        (from.clone(), &handle.token, &handle, "ok"),
        (format!("http://{from}"), &odd.token, &odd, "ok"),
        ("10.1.2.3:80".to_owned(), &handle.token, &handle, "peer_not_allowed"),
        (closed.to_string(), &handle.token, &handle, "peer_unreachable"),
        (to.clone(), &handle.token, &handle, "no_peer_plane"),
    ] {
        a2a::complete(reading.url(), &unique("task"), &format!("Fetch {task} from {peer}"));
        let stored = match code {
            "ok" => {
                let folder = reader.work().join("peer-in");
                let prefix = format!("{}-", id(&handle.token));
                let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
                let mut names = names.filter_map(|name| name.into_string().ok());
                let name = names.find(|name| name.starts_with(&prefix)).expect("stored");
                let bytes = fs::read(folder.join(&name)).unwrap();
                [json!(format!("peer-in/{name}")), json!(bytes.len()), hash(&bytes)]
            }
            _ => [null(), null(), null()],
        };
        let [stored_path, bytes, sha256] = stored;
        fetches.push((code, vec![json!(peer), token(handle), stored_path, bytes, sha256, json!(code)]));
    }

    let (mint_records, fetch_records) = (writing.records(), reading.records());
    writing.stop();
    reading.stop();
    let trace = Trace::read(&mint_records);
    let said = |event: &Value| {
        let reason = event["reason"].clone();
        assert!(reason.as_str().is_some_and(|text| !text.is_empty()), "a sentence: {event}");
        reason
    };
    let minted = trace.of("peer_handle_mint");
    let refused = |number: usize| said(minted[number]);
    compare(
        &trace,
        "peer_handle_mint",
        &MINT,
        &[
            vec![token(&handle), json!("report.md"), audience.clone(), expires(&handle), json!("ok"), null()],
            vec![
                token(&odd),
                json!("a \"b\"\u{e9}\\.md"),
                audience.clone(),
                expires(&odd),
                json!("ok"),
                null(),
            ],
            vec![
                null(),
                json!("none.md"),
                minted[2]["audience"].clone(),
                null(),
                json!("not_found"),
                refused(2),
            ],
            vec![null(), json!("report.md"), json!(""), null(), json!("peer_unreachable"), refused(3)],
            vec![null(), json!("%2e%2e/x"), json!(""), null(), json!("outside_root"), refused(4)],
        ],
    );
    // The path is looked at before or after the card: then there is an audience or none.
    assert!([&json!(""), &audience].contains(&&minted[2]["audience"]), "{}", minted[2]);
    // The fetches redeemed, too.
    let redeemed: Vec<_> =
        [(&handle, "report.md", 6, hash(b"hello\n")), (&odd, "a \"b\"\u{e9}\\.md", 4, hash(b"odd\n"))]
            .into_iter()
            .map(|(handle, path, bytes, sum)| {
                vec![
                    token(handle),
                    json!(path),
                    json!(5),
                    audience.clone(),
                    json!(bytes),
                    sum,
                    json!("ok"),
                    null(),
                ]
            })
            .collect();
    redeems.extend(redeemed);
    compare(&trace, "peer_handle_redeem", &REDEEM, &redeems);

    let trace = Trace::read(&fetch_records);
    let reasons: Vec<Value> = trace
        .of("peer_file_fetch")
        .iter()
        .map(|event| if event["outcome"] == "ok" { null() } else { said(event) })
        .collect();
    let fetches: Vec<Vec<Value>> = fetches
        .into_iter()
        .zip(reasons)
        .map(|((_, mut values), reason)| {
            values.push(reason);
            values
        })
        .collect();
    compare(&trace, "peer_file_fetch", &FETCH, &fetches);
    let own = trace.of("tool_call");
    let calls: Vec<_> = own.iter().filter(|call| call["tool_name"] == "fetch-peer-file").collect();
    assert_eq!(calls.len(), 5, "one call for each line");
}
