//! Where does a request head end, and what does it say? Raw bytes in, borrowed parts out, no I/O.
//!
//! The target is kept exactly as sent: no URI type tidies it (`seed: Path resolution`, a request that would leave the root
//! is refused, never normalised).

use httparse::Header;

/// The most header lines of a head.
pub const MAX_HEADERS: usize = 128;

/// Why a head is not served; each is answered without a body and ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// Not a request of HTTP/1.0 or 1.1, or one whose end two readers could see in two places.
    #[error("the head is malformed")]
    Malformed,
    /// The request line is too long.
    #[error("the request line is too long")]
    LongLine,
    /// The head is too long or has too many lines.
    #[error("the head is too large")]
    TooLarge,
}

impl HeadError {
    /// The HTTP status.
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            HeadError::Malformed => 400,
            HeadError::LongLine => 414,
            HeadError::TooLarge => 431,
        }
    }
}

/// Finds the end of a head in bytes that arrive in pieces, looking at every byte once.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scanner {
    seen: usize,
    start: usize,
    place: Place,
    first_line_done: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    /// Before the request line: empty lines are skipped.
    #[default]
    Leading,
    InLine,
    LineStart,
    AfterReturn,
}

impl Scanner {
    /// Looks at what arrived since the last call. `bytes` is everything so far; the answer is the range of the head once
    /// it is complete.
    ///
    /// # Errors
    /// [`HeadError::LongLine`], [`HeadError::TooLarge`].
    pub fn advance(
        &mut self,
        bytes: &[u8],
        request_line: usize,
        head: usize,
    ) -> Result<Option<std::ops::Range<usize>>, HeadError> {
        for (index, byte) in bytes.iter().enumerate().skip(self.seen) {
            self.seen = index + 1;
            if self.seen > head {
                return Err(if self.first_line_done { HeadError::TooLarge } else { HeadError::LongLine });
            }
            self.place = match (self.place, byte) {
                (Place::Leading, b'\r' | b'\n') => Place::Leading,
                (Place::Leading, _) => {
                    self.start = index;
                    Place::InLine
                }
                (Place::InLine, b'\n') => {
                    self.first_line_done = true;
                    Place::LineStart
                }
                (Place::LineStart | Place::AfterReturn, b'\n') => return Ok(Some(self.start..self.seen)),
                (Place::LineStart, b'\r') => Place::AfterReturn,
                (Place::InLine | Place::LineStart | Place::AfterReturn, _) => Place::InLine,
            };
            let line = self.seen - self.start;
            if self.place == Place::InLine && !self.first_line_done && line > request_line + 1 {
                return Err(HeadError::LongLine);
            }
        }
        Ok(None)
    }
}

/// How the body of a request is delimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    Empty,
    /// Exactly so many bytes, at least one.
    Length(u64),
    /// Chunked.
    Chunked,
}

/// A parsed head.
#[derive(Debug)]
pub struct Head<'b> {
    /// The method, case-sensitive.
    pub method: &'b str,
    /// The target as sent.
    pub target: &'b str,
    /// How the body is delimited.
    pub framing: Framing,
    headers: Vec<Header<'b>>,
}

impl<'b> Head<'b> {
    /// Parses a whole head as [`Scanner`] found it.
    ///
    /// # Errors
    /// Any [`HeadError`] but `LongLine`.
    pub fn parse(bytes: &'b [u8]) -> Result<Self, HeadError> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(bytes) {
            Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
            Ok(_) => return Err(HeadError::Malformed),
            Err(httparse::Error::TooManyHeaders) => return Err(HeadError::TooLarge),
            Err(_) => return Err(HeadError::Malformed),
        }
        let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version)
        else {
            return Err(HeadError::Malformed);
        };
        let headers = request.headers.to_vec();
        let framing = framing(&headers, version)?;
        Ok(Head { method, target, framing, headers })
    }

    /// The values of every header of this name, in order.
    pub fn all<'h>(&'h self, name: &'h str) -> impl Iterator<Item = &'b [u8]> + 'h {
        values(&self.headers, name)
    }

    /// The value of a header that was sent exactly once.
    #[must_use]
    pub fn once(&self, name: &str) -> Option<&'b [u8]> {
        let mut found = self.all(name);
        let first = found.next();
        if found.next().is_some() { None } else { first }
    }
}

fn values<'h, 'b>(headers: &'h [Header<'b>], name: &'h str) -> impl Iterator<Item = &'b [u8]> + 'h {
    headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

/// A request whose length two readers could understand differently is refused: both ways of saying it, one of them twice,
/// or a length that is not plain digits.
fn framing(headers: &[Header<'_>], version: u8) -> Result<Framing, HeadError> {
    let mut lengths = values(headers, "content-length");
    let mut codings = values(headers, "transfer-encoding");
    match (lengths.next(), lengths.next(), codings.next(), codings.next()) {
        (None, _, None, _) => Ok(Framing::Empty),
        (Some(length), None, None, _) => match digits(length)? {
            0 => Ok(Framing::Empty),
            length => Ok(Framing::Length(length)),
        },
        (None, _, Some(coding), None) if version == 1 && coding.eq_ignore_ascii_case(b"chunked") => {
            Ok(Framing::Chunked)
        }
        _ => Err(HeadError::Malformed),
    }
}

fn digits(text: &[u8]) -> Result<u64, HeadError> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(HeadError::Malformed);
    }
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(HeadError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: usize = 64;
    const HEAD: usize = 256;

    fn scan(bytes: &[u8]) -> Result<Option<std::ops::Range<usize>>, HeadError> {
        Scanner::default().advance(bytes, LINE, HEAD)
    }

    #[test]
    fn the_end_of_a_head_is_found_however_it_arrives() {
        let text = b"\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\nrest";
        let expected = 4..text.len() - 4;
        assert_eq!(scan(text), Ok(Some(expected.clone())));
        let mut scanner = Scanner::default();
        for end in 0..expected.end {
            assert_eq!(scanner.advance(&text[..end], LINE, HEAD), Ok(None), "{end}");
        }
        assert_eq!(scanner.advance(&text[..expected.end], LINE, HEAD), Ok(Some(expected)));
        assert_eq!(scan(b"GET / HTTP/1.1\n\nrest"), Ok(Some(0..16)));
        assert_eq!(scan(b"GET / HTTP/1.1\r\nx: \r\r\n"), Ok(None));
    }

    #[test]
    fn a_line_or_head_over_its_limit_is_refused_and_one_at_the_limit_is_not() {
        let mut line = vec![b'a'; LINE];
        line.extend_from_slice(b"\r\n");
        assert_eq!(scan(&line), Ok(None));
        line.insert(0, b'a');
        line.insert(0, b'a');
        assert_eq!(scan(&line), Err(HeadError::LongLine));
        assert_eq!(scan(&[b'\n'; HEAD + 1]), Err(HeadError::LongLine));

        let mut head = b"GET / HTTP/1.1\r\n".to_vec();
        head.resize(HEAD - 4, b'h');
        head.extend_from_slice(b"\r\n\r\n");
        assert_eq!(scan(&head), Ok(Some(0..HEAD)));
        head.insert(20, b'h');
        assert_eq!(scan(&head), Err(HeadError::TooLarge));
    }

    #[test]
    fn targets_are_kept_as_sent() {
        for target in
            ["/a/../b", "//x", "*", "h:443", "http://h:1/p", "/%zz%", "/a#b", "/a\\b", "/é", "/a?b?c"]
        {
            let text = format!("gEt {target} HTTP/1.0\r\nHost: x\r\n\r\n");
            let head = Head::parse(text.as_bytes()).unwrap();
            assert_eq!((head.method, head.target), ("gEt", target));
        }
    }

    #[test]
    fn what_is_not_one_request_is_refused() {
        let cases: &[(&[u8], HeadError)] = &[
            (b"GET /\xff HTTP/1.1\r\n\r\n", HeadError::Malformed),
            (b"GET /a b HTTP/1.1\r\n\r\n", HeadError::Malformed),
            (b"GET / HTTP/2.0\r\n\r\n", HeadError::Malformed),
            (b"PRI * HTTP/2.0\r\n\r\n", HeadError::Malformed),
            (b"GET /\r\n\r\n", HeadError::Malformed),
            (b"GET / HTTP/1.1\r\nx : y\r\n\r\n", HeadError::Malformed),
            (b"GET / HTTP/1.1\r\nx: y\r\n z\r\n\r\n", HeadError::Malformed),
            (b"GET / HTTP/1.1\r\nx: a\x1fb\r\n\r\n", HeadError::Malformed),
            (b"\x16\x03\x01\r\n\r\n", HeadError::Malformed),
        ];
        for (bytes, error) in cases {
            assert_eq!(Head::parse(bytes).err(), Some(*error), "{}", String::from_utf8_lossy(bytes));
        }
        let mut many = b"GET / HTTP/1.1\r\n".to_vec();
        many.extend(b"a: b\r\n".repeat(MAX_HEADERS + 1));
        many.extend(b"\r\n");
        assert_eq!(Head::parse(&many).err(), Some(HeadError::TooLarge));
    }

    #[test]
    fn the_length_of_a_body_is_said_once_and_one_way() {
        let cases: &[(&str, Result<Framing, HeadError>)] = &[
            ("", Ok(Framing::Empty)),
            ("Content-Length: 0\r\n", Ok(Framing::Empty)),
            ("Content-Length: 17\r\n", Ok(Framing::Length(17))),
            ("Transfer-Encoding: Chunked\r\n", Ok(Framing::Chunked)),
            ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", Err(HeadError::Malformed)),
            ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", Err(HeadError::Malformed)),
            ("Content-Length: 4\r\nContent-Length: 4\r\n", Err(HeadError::Malformed)),
            ("Content-Length: 4, 4\r\n", Err(HeadError::Malformed)),
            ("Content-Length: +4\r\n", Err(HeadError::Malformed)),
            ("Content-Length: 4x\r\n", Err(HeadError::Malformed)),
            ("Content-Length:\r\n", Err(HeadError::Malformed)),
            ("Content-Length: 18446744073709551616\r\n", Err(HeadError::Malformed)),
            ("Transfer-Encoding: gzip, chunked\r\n", Err(HeadError::Malformed)),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", Err(HeadError::Malformed)),
        ];
        for (lines, expected) in cases {
            let text = format!("POST / HTTP/1.1\r\n{lines}\r\n");
            assert_eq!(Head::parse(text.as_bytes()).map(|head| head.framing), *expected, "{lines:?}");
        }
        let old = b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(Head::parse(old).err(), Some(HeadError::Malformed));
    }

    #[test]
    fn headers_are_found_by_any_case_and_once_means_once() {
        let head = Head::parse(b"GET / HTTP/1.1\r\nA: 1\r\na:  2 \r\nB: 3\r\n\r\n").unwrap();
        assert_eq!(head.all("a").collect::<Vec<_>>(), [b"1", b"2"]);
        assert_eq!((head.once("a"), head.once("b"), head.once("c")), (None, Some(&b"3"[..]), None));
    }
}
