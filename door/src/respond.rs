//! What do the door's own answers look like? Heads and bodies as bytes, no I/O. Every one ends the connection.

use std::fmt::Write;

use ipc::types::{Class, FileMeta, PlaneCode, hex};

/// The constants that every served answer of the operator plane repeats.
#[derive(Debug, Clone, Copy)]
pub struct Provenance<'c> {
    /// The class really applied.
    pub class: Class,
    /// `exports.files.root` verbatim.
    pub root: &'c str,
}

/// An answer without a body: unrouted targets, malformed heads, health.
#[must_use]
pub fn plain(status: u16) -> Vec<u8> {
    let mut head = status_line(status);
    if status != 204 {
        header(&mut head, "content-length", 0);
    }
    close(head)
}

/// The agent card: head and body in one.
#[must_use]
pub fn card(card: &str) -> Vec<u8> {
    let mut head = status_line(200);
    header(&mut head, "content-type", "application/json");
    header(&mut head, "content-length", card.len());
    let mut answer = close(head);
    answer.extend_from_slice(card.as_bytes());
    answer
}

/// A refusal of a plane (`seed: Errors`): head and body in one, the body left out for HEAD. The text is the code's own and
/// never echoes the request.
#[must_use]
pub fn refusal(code: PlaneCode, with_body: bool) -> Vec<u8> {
    let body = format!("{{\"error\":\"{}\",\"message\":\"{}\"}}", code.as_str(), code.message());
    let mut head = status_line(code.status());
    header(&mut head, "content-type", "application/json");
    if code == PlaneCode::MethodNotAllowed {
        header(&mut head, "allow", "GET");
    }
    header(&mut head, "content-length", body.len());
    let mut answer = close(head);
    if with_body {
        answer.extend_from_slice(body.as_bytes());
    }
    answer
}

/// The head of a read (`seed: GET /resources/files/<relpath>`).
#[must_use]
pub fn file(meta: &FileMeta, provenance: Provenance<'_>) -> Vec<u8> {
    let mut head = status_line(200);
    validators(&mut head, meta);
    served(&mut head, meta.generation, provenance);
    header(&mut head, "content-length", meta.bytes);
    close(head)
}

/// The head of a redeem (`seed: GET /resources/peer/<handle>`): nothing in it tells where the file is.
#[must_use]
pub fn redeemed(meta: &FileMeta, class: Class, handle_id: &str) -> Vec<u8> {
    let mut head = status_line(200);
    validators(&mut head, meta);
    header(&mut head, "x-murmur-generation", meta.generation);
    header(&mut head, "x-murmur-containment", class.as_str());
    header(&mut head, "x-murmur-handle-id", handle_id);
    header(&mut head, "content-length", meta.bytes);
    close(head)
}

/// The head of a listing (`seed: GET /resources/files`).
#[must_use]
pub fn listing(length: u64, generation: u64, provenance: Provenance<'_>) -> Vec<u8> {
    let mut head = status_line(200);
    header(&mut head, "content-type", "application/json");
    served(&mut head, generation, provenance);
    header(&mut head, "content-length", length);
    close(head)
}

fn validators(head: &mut String, meta: &FileMeta) {
    header(head, "content-type", "application/octet-stream");
    header(head, "etag", format_args!("\"sha256:{}\"", hex(&meta.sha256)));
    header(head, "x-murmur-mtime-ms", meta.mtime_ms);
}

fn served(head: &mut String, generation: u64, provenance: Provenance<'_>) {
    header(head, "x-murmur-generation", generation);
    header(head, "x-murmur-containment", provenance.class.as_str());
    header(head, "x-murmur-export-root", provenance.root);
}

fn status_line(status: u16) -> String {
    let reason = match status {
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        410 => "Gone",
        413 => "Content Too Large",
        414 => "URI Too Long",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "",
    };
    let mut head = String::with_capacity(512);
    let _ = write!(head, "HTTP/1.1 {status} {reason}\r\n");
    head
}

fn header(head: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = write!(head, "{name}: {value}\r\n");
}

fn close(mut head: String) -> Vec<u8> {
    head.push_str("connection: close\r\n\r\n");
    head.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROVENANCE: Provenance<'static> = Provenance { class: Class::Sealed, root: "out/" };

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_read_carries_the_seeds_headers_in_the_seeds_order() {
        let meta = FileMeta { bytes: 32, sha256: [0x0a; 32], mtime_ms: 1_787_577_327_015, generation: 3 };
        let etag = "0a".repeat(32);
        assert_eq!(
            text(file(&meta, PROVENANCE)),
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\netag: \"sha256:{etag}\"\r\n\
                 x-murmur-mtime-ms: 1787577327015\r\nx-murmur-generation: 3\r\nx-murmur-containment: sealed\r\n\
                 x-murmur-export-root: out/\r\ncontent-length: 32\r\nconnection: close\r\n\r\n"
            )
        );
    }

    #[test]
    fn a_redeem_carries_the_handles_identifier_and_no_path_structure() {
        let meta = FileMeta { bytes: 32, sha256: [0x0a; 32], mtime_ms: 1_787_577_327_015, generation: 3 };
        let etag = "0a".repeat(32);
        assert_eq!(
            text(redeemed(&meta, Class::Sealed, "3f2a91c40b7e5d68")),
            format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\netag: \"sha256:{etag}\"\r\n\
                 x-murmur-mtime-ms: 1787577327015\r\nx-murmur-generation: 3\r\nx-murmur-containment: sealed\r\n\
                 x-murmur-handle-id: 3f2a91c40b7e5d68\r\ncontent-length: 32\r\nconnection: close\r\n\r\n"
            )
        );
    }

    #[test]
    fn every_refusal_is_compact_json_of_exactly_its_announced_length() {
        for code in PlaneCode::ALL {
            let answer = text(refusal(code, true));
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {} ", code.status())), "{head}");
            assert!(!head.starts_with(&format!("HTTP/1.1 {} \r\n", code.status())), "{head}");
            assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", body.len())), "{head}");
            assert!(head.ends_with("\r\nconnection: close"));
            assert_eq!(head.contains("\r\nallow: GET\r\n"), code == PlaneCode::MethodNotAllowed);
            assert_eq!(
                body,
                format!("{{\"error\":\"{}\",\"message\":\"{}\"}}", code.as_str(), code.message())
            );
            assert!(!code.message().contains(['"', '\\']) && code.message().is_ascii());
            assert_eq!(text(refusal(code, false)), format!("{head}\r\n\r\n"));
        }
    }

    #[test]
    fn answers_without_a_body_say_so() {
        assert_eq!(
            text(plain(404)),
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        assert_eq!(text(plain(204)), "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n");
    }

    #[test]
    fn a_listing_and_the_card_are_json_with_their_length() {
        assert_eq!(
            text(listing(7, 0, PROVENANCE)),
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-murmur-generation: 0\r\n\
             x-murmur-containment: sealed\r\nx-murmur-export-root: out/\r\ncontent-length: 7\r\n\
             connection: close\r\n\r\n"
        );
        assert_eq!(
            text(card("{\"a\":\"é\"}")),
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 10\r\nconnection: close\r\n\r\n\
             {\"a\":\"é\"}"
        );
    }
}
