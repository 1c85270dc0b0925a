//! What a program asks a name server, and the message that answers it. Pure: bytes in, bytes out.

use std::net::Ipv4Addr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

/// The largest question that is read, in bytes.
pub(crate) const LARGEST: usize = 4096;
/// The largest answer, which every asker must take (RFC 1035); what does not fit is left out of it.
const LARGEST_ANSWER: usize = 512;
/// How long an answer may be used, in seconds.
const TTL: u32 = 60;
/// Bytes of the header of every message.
const HEADER: usize = 12;

/// A question that can be answered.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    id: u16,
    recursion_desired: bool,
    query: Query,
    edns: bool,
}

/// What a datagram is.
#[derive(Debug)]
pub(crate) enum Read {
    /// A question.
    Question(Question),
    /// No question, and this answers it.
    Answer(Vec<u8>),
    /// Nothing that is answered: an answer itself, or less than a header.
    Nothing,
}

/// Reads a datagram; `whole` is false if it was larger than [`LARGEST`].
pub(crate) fn read(bytes: &[u8], whole: bool) -> Read {
    let Some(&[id_high, id_low, flags, _, questions_high, questions_low, ..]) = bytes.get(..HEADER) else {
        return Read::Nothing;
    };
    let (id, opcode) = (u16::from_be_bytes([id_high, id_low]), OpCode::from_u8(flags >> 3 & 0xf));
    if flags & 0x80 != 0 {
        return Read::Nothing;
    }
    let refuse = |code| match Message::error_msg(id, opcode, code).to_vec() {
        Ok(bytes) => Read::Answer(bytes),
        Err(_) => Read::Nothing,
    };
    if opcode != OpCode::Query {
        return refuse(ResponseCode::NotImp);
    }
    // Counted before it is parsed, which takes room by the counts.
    if !whole || (questions_high, questions_low) != (0, 1) {
        return refuse(ResponseCode::FormErr);
    }
    let Ok(mut message) = Message::from_vec(bytes) else { return refuse(ResponseCode::FormErr) };
    let (Some(query), MessageType::Query) = (message.queries.pop(), message.metadata.message_type) else {
        return refuse(ResponseCode::FormErr);
    };
    let edns = message.edns.is_some();
    let question = Question { id, recursion_desired: message.metadata.recursion_desired, query, edns };
    if message.edns.is_some_and(|edns| edns.version() != 0) {
        return Read::Answer(question.answer(ResponseCode::BADVERS, &[]));
    }
    Read::Question(question)
}

impl Question {
    /// The name as allow-lists write names: lower case, no final dot. `None` for one that none can hold.
    pub(crate) fn name(&self) -> Option<String> {
        let mut text = String::new();
        for label in self.query.name() {
            if !text.is_empty() {
                text.push('.');
            }
            let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            if !label.iter().all(plain) {
                return None;
            }
            text.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
        }
        (!text.is_empty()).then_some(text)
    }

    /// The name for a report: everything but printable ASCII is escaped.
    pub(crate) fn shown(&self) -> String {
        let name = self.query.name().to_ascii();
        let name: String = name.chars().filter(char::is_ascii_graphic).collect();
        name.strip_suffix('.').map(str::to_ascii_lowercase).unwrap_or(name)
    }

    /// Whether IPv4 addresses are asked for.
    pub(crate) fn wants_addresses(&self) -> bool {
        self.query.query_type() == RecordType::A && self.query.query_class() == DNSClass::IN
    }

    /// The answer: this code and, if it is that there is no error, these addresses, as many as fit.
    pub(crate) fn answer(&self, code: ResponseCode, addresses: &[Ipv4Addr]) -> Vec<u8> {
        let mut message = Message::response(self.id, OpCode::Query);
        message.metadata.response_code = code;
        message.metadata.recursion_desired = self.recursion_desired;
        message.metadata.recursion_available = true;
        message.add_query(self.query.clone());
        if self.edns {
            let mut edns = Edns::new();
            edns.set_max_payload(LARGEST as u16).set_rcode_high(code.high());
            message.set_edns(edns);
        }
        let record = |address: &Ipv4Addr| {
            let name: Name = self.query.name().clone();
            Record::from_rdata(name, TTL, RData::from(*address))
        };
        message.add_answers(addresses.iter().map(record));
        loop {
            // Names are at most 255 bytes, so that without addresses it fits.
            match message.to_vec() {
                Ok(bytes) if bytes.len() <= LARGEST_ANSWER || message.answers.is_empty() => return bytes,
                Err(_) if message.answers.is_empty() => return Vec::new(),
                Ok(_) | Err(_) => drop(message.answers.pop()),
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn ask(name: &str, kind: RecordType) -> Message {
        let mut message = Message::new(0x1234, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        message
    }

    fn question(bytes: &[u8]) -> Question {
        match read(bytes, true) {
            Read::Question(question) => question,
            other => panic!("{other:?}"),
        }
    }

    fn refused(bytes: &[u8], whole: bool) -> ResponseCode {
        match read(bytes, whole) {
            Read::Answer(bytes) => {
                let answer = Message::from_vec(&bytes).unwrap();
                assert_eq!(
                    (answer.metadata.id, answer.metadata.message_type),
                    (0x1234, MessageType::Response)
                );
                answer.metadata.response_code
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_question_has_the_name_a_list_would_write_or_none() {
        for (asked, name, wants) in [
            ("Web.Example.", Some("web.example"), true),
            ("a_b-c.example.", Some("a_b-c.example"), true),
            ("1.2.3.4.", Some("1.2.3.4"), true),
            (".", None, true),
            ("a\\.b.example.", None, true),
        ] {
            let question = question(&ask(asked, RecordType::A).to_vec().unwrap());
            assert_eq!(question.name().as_deref(), name, "{asked}");
            assert_eq!(question.wants_addresses(), wants, "{asked}");
            assert!(question.shown().is_ascii(), "{asked}");
        }
        for label in [&b"sp ace"[..], b"nul\0", b"\xff", b"com/ma"] {
            let mut odd = ask("a.example.", RecordType::A);
            odd.queries[0].set_name(Name::from_labels([label, b"example"]).unwrap());
            let question = question(&odd.to_vec().unwrap());
            assert_eq!(question.name(), None, "{label:?}");
            assert!(question.shown().chars().all(|c| c.is_ascii_graphic()), "{}", question.shown());
        }
        let other = question(&ask("a.example.", RecordType::TXT).to_vec().unwrap());
        assert!(!other.wants_addresses());
        let mut chaos = ask("a.example.", RecordType::A);
        chaos.queries[0].set_query_class(DNSClass::CH);
        assert!(!question(&chaos.to_vec().unwrap()).wants_addresses());
    }

    #[test]
    fn what_is_no_question_is_refused_or_dropped() {
        let whole = ask("web.example.", RecordType::A).to_vec().unwrap();
        for length in 0..HEADER {
            assert!(matches!(read(&whole[..length], true), Read::Nothing), "{length}");
        }
        for length in HEADER..whole.len() {
            assert_eq!(refused(&whole[..length], true), ResponseCode::FormErr, "{length}");
        }
        assert_eq!(refused(&whole, false), ResponseCode::FormErr, "more than is read");
        let changed = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            bytes
        };
        assert!(matches!(read(&changed(2, 0x81), true), Read::Nothing), "an answer");
        assert_eq!(refused(&changed(2, 0x21), true), ResponseCode::NotImp, "another operation");
        assert_eq!(refused(&changed(5, 0), true), ResponseCode::FormErr, "no question");
        assert_eq!(refused(&changed(5, 2), true), ResponseCode::FormErr, "two questions");
        assert_eq!(refused(&changed(4, 0xff), true), ResponseCode::FormErr, "many questions");
        assert_eq!(refused(&changed(7, 1), true), ResponseCode::FormErr, "an answer that is not there");
        let mut edns = ask("web.example.", RecordType::A);
        edns.set_edns(Edns::new());
        assert!(matches!(read(&edns.to_vec().unwrap(), true), Read::Question(_)));
        edns.edns.as_mut().unwrap().set_version(1);
        let code = refused(&edns.to_vec().unwrap(), true);
        // 16 has two names.
        assert_eq!(u16::from(code), u16::from(ResponseCode::BADVERS));
    }

    /// Every byte of a question changed to a few values: nothing panics, and whatever is answered is a message.
    #[test]
    fn no_bytes_are_answered_with_garbage() {
        let whole = ask("web.example.", RecordType::A).to_vec().unwrap();
        for at in 0..whole.len() {
            for value in [0, 1, 0x3f, 0x40, 0x80, 0xc0, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let answer = match read(&bytes, true) {
                    Read::Nothing => continue,
                    Read::Answer(answer) => answer,
                    Read::Question(question) => question.answer(ResponseCode::Refused, &[]),
                };
                let answer = Message::from_vec(&answer).unwrap();
                assert_eq!(answer.metadata.message_type, MessageType::Response, "{at} {value}");
            }
        }
    }

    #[test]
    fn an_answer_repeats_the_question_and_fits_what_everybody_takes() {
        let long = format!("{0}.{0}.{0}.{1}.", "a".repeat(63), "b".repeat(61));
        let many: Vec<Ipv4Addr> = (1..=40_u32).map(Ipv4Addr::from).collect();
        for (name, given) in [("web.example.", &many[..3]), ("WEB.example.", &many), (&long, &many)] {
            for edns in [false, true] {
                let mut asked = ask(name, RecordType::A);
                if edns {
                    asked.set_edns(Edns::new());
                }
                let bytes = question(&asked.to_vec().unwrap()).answer(ResponseCode::NoError, given);
                assert!(bytes.len() <= LARGEST_ANSWER, "{name}: {}", bytes.len());
                let answer = Message::from_vec(&bytes).unwrap();
                assert_eq!((answer.metadata.id, &answer.queries), (0x1234, &asked.queries));
                assert_eq!(answer.queries[0].name().to_ascii(), name, "in its own spelling");
                assert!(!answer.metadata.truncation && answer.metadata.recursion_desired);
                assert_eq!(answer.edns.is_some(), edns);
                assert!(!answer.answers.is_empty() && answer.answers.len() >= given.len().min(10));
                for (record, address) in answer.answers.iter().zip(given) {
                    assert_eq!((record.ttl, &record.data), (TTL, &RData::from(*address)));
                }
            }
        }
        let bytes = question(&ask("web.example.", RecordType::A).to_vec().unwrap());
        let answer = Message::from_vec(&bytes.answer(ResponseCode::Refused, &[])).unwrap();
        assert_eq!(answer.metadata.response_code, ResponseCode::Refused);
        assert!(answer.answers.is_empty());
    }
}
