//! One question to the host's name servers: over UDP, and over TCP where the answer did not fit.
//!
//! What comes back is data of the network: an answer counts if it comes from the server that was asked, carries the number of
//! the question and repeats it; addresses count if the names in the answer lead from the question to them. The port of each
//! question is new and chosen by the kernel, its number is random.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::resolve::NoAddress;

/// How long the whole look-up may take.
const LONGEST: Duration = Duration::from_secs(5);
/// How long one server may take to answer once.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// How often each server is asked.
const ATTEMPTS: u32 = 2;
/// The largest answer over UDP that is read, in bytes.
const LARGEST_DATAGRAM: usize = 4096;
/// The most addresses of one name that are used.
pub(crate) const MOST_ADDRESSES: usize = 16;
/// The most names that one answer may lead through.
const MOST_ALIASES: usize = 16;

/// The kind of addresses that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// IPv4.
    A,
    /// IPv6.
    Aaaa,
}

impl From<Kind> for RecordType {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::A => RecordType::A,
            Kind::Aaaa => RecordType::AAAA,
        }
    }
}

/// Asks the servers in their order, twice, until one knows.
///
/// # Errors
/// [`NoAddress`].
pub(crate) async fn lookup(servers: &[SocketAddr], host: &str, kind: Kind) -> Result<Vec<IpAddr>, NoAddress> {
    let Ok(mut name) = Name::from_ascii(host) else { return Err(NoAddress::NotFound) };
    // As it is, below no search domain.
    name.set_fqdn(true);
    let query = Query::query(name, kind.into());
    let all = async {
        for _ in 0..ATTEMPTS {
            for server in servers {
                if let Ok(Some(told)) = timeout(ANSWER_PATIENCE, ask(*server, &query)).await {
                    return told;
                }
            }
        }
        Err(NoAddress::NoAnswer)
    };
    timeout(LONGEST, all).await.unwrap_or(Err(NoAddress::NoAnswer))
}

/// What one server knows; `None` if it cannot be asked, or says that it does not know.
async fn ask(server: SocketAddr, query: &Query) -> Option<Result<Vec<IpAddr>, NoAddress>> {
    let mut question = Message::query();
    question.metadata.recursion_desired = true;
    question.add_query(query.clone());
    let bytes = question.to_vec().ok()?;
    let mut answer = over_udp(server, &bytes, &question).await?;
    if answer.metadata.truncation {
        answer = over_tcp(server, &bytes, &question).await?;
    }
    match answer.metadata.response_code {
        ResponseCode::NoError => Some(Ok(addresses(&answer, query))),
        ResponseCode::NXDomain => Some(Err(NoAddress::NotFound)),
        _ => None,
    }
}

async fn over_udp(server: SocketAddr, bytes: &[u8], question: &Message) -> Option<Message> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await.ok()?;
    // The kernel then passes on what comes from there and nothing else.
    socket.connect(server).await.ok()?;
    socket.send(bytes).await.ok()?;
    let mut buffer = vec![0; LARGEST_DATAGRAM];
    loop {
        let length = socket.recv(&mut buffer).await.ok()?;
        let answer = Message::from_vec(buffer.get(..length).unwrap_or_default());
        if let Some(answer) = answer.ok().filter(|answer| answers(answer, question)) {
            return Some(answer);
        }
    }
}

async fn over_tcp(server: SocketAddr, bytes: &[u8], question: &Message) -> Option<Message> {
    let mut stream = TcpStream::connect(server).await.ok()?;
    let length = u16::try_from(bytes.len()).ok()?;
    let framed = [&length.to_be_bytes(), bytes].concat();
    stream.write_all(&framed).await.ok()?;
    let length = stream.read_u16().await.ok()?;
    let mut buffer = vec![0; length.into()];
    stream.read_exact(&mut buffer).await.ok()?;
    Message::from_vec(&buffer).ok().filter(|answer| answers(answer, question))
}

/// Whether this is the answer to that question.
fn answers(answer: &Message, question: &Message) -> bool {
    answer.metadata.message_type == MessageType::Response
        && answer.metadata.op_code == OpCode::Query
        && answer.metadata.id == question.metadata.id
        && answer.queries == question.queries
}

/// The addresses to which the answer's names lead from the question.
fn addresses(answer: &Message, query: &Query) -> Vec<IpAddr> {
    let mut name = query.name();
    for _ in 0..MOST_ALIASES {
        let of_name = || {
            answer.answers.iter().filter(|record| record.name == *name && record.dns_class == DNSClass::IN)
        };
        let wanted = |record: &hickory_proto::rr::Record| match (&record.data, query.query_type()) {
            (RData::A(address), RecordType::A) => Some(IpAddr::V4(address.0)),
            (RData::AAAA(address), RecordType::AAAA) => Some(IpAddr::V6(address.0)),
            _ => None,
        };
        let found: Vec<IpAddr> = of_name().filter_map(wanted).take(MOST_ADDRESSES).collect();
        let alias = of_name().find_map(|record| match &record.data {
            RData::CNAME(target) => Some(&target.0),
            _ => None,
        });
        match alias {
            Some(target) if found.is_empty() => name = target,
            _ => return found,
        }
    }
    Vec::new()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hickory_proto::rr::Record;
    use hickory_proto::rr::rdata::CNAME;
    use tokio::net::TcpListener;

    use super::*;

    /// What a table says: a name with each of its addresses or, for an alias, `=target`. Names that begin with a word of their
    /// own are answered oddly: `silent`, `failing`, `forged`, `big`, `garbled`.
    type Zone = Vec<(String, String)>;

    /// A name server on loopback, over UDP and TCP, that knows the table; counts questions.
    pub(crate) async fn server(zone: &[(&str, &str)]) -> (SocketAddr, Arc<AtomicUsize>) {
        let zone: Arc<Zone> =
            Arc::new(zone.iter().map(|(name, data)| ((*name).to_owned(), (*data).to_owned())).collect());
        let asked = Arc::new(AtomicUsize::new(0));
        let (udp, tcp) = loop {
            let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let address = udp.local_addr().unwrap();
        let (known, count) = (Arc::clone(&zone), Arc::clone(&asked));
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            loop {
                let (length, from) = udp.recv_from(&mut buffer).await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                for answer in over(&known, &buffer[..length], false) {
                    udp.send_to(&answer, from).await.unwrap();
                }
            }
        });
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                let length = stream.read_u16().await.unwrap();
                let mut buffer = vec![0; length.into()];
                stream.read_exact(&mut buffer).await.unwrap();
                for answer in over(&zone, &buffer, true) {
                    stream.write_u16(answer.len().try_into().unwrap()).await.unwrap();
                    stream.write_all(&answer).await.unwrap();
                }
            }
        });
        (address, asked)
    }

    fn over(zone: &Zone, question: &[u8], tcp: bool) -> Vec<Vec<u8>> {
        let question = Message::from_vec(question).unwrap();
        let query = question.queries[0].clone();
        assert!(question.metadata.recursion_desired && query.name().is_fqdn());
        let name = query.name().to_ascii();
        let mut answer = Message::response(question.metadata.id, OpCode::Query);
        answer.add_query(query.clone());
        let mut owner = name.trim_end_matches('.').to_owned();
        for _ in 0..20 {
            let mut next = None;
            for (_, data) in zone.iter().filter(|(known, _)| *known == owner) {
                let from = Name::from_ascii(format!("{owner}.")).unwrap();
                let record = match data.strip_prefix('=') {
                    Some(target) => {
                        next = Some(target.to_owned());
                        RData::CNAME(CNAME(Name::from_ascii(format!("{target}.")).unwrap()))
                    }
                    None => RData::from(data.parse::<IpAddr>().unwrap()),
                };
                if record.record_type() == query.query_type() || next.is_some() {
                    answer.add_answer(Record::from_rdata(from, 7, record));
                }
            }
            match next {
                Some(target) => owner = target,
                None => break,
            }
        }
        if !zone.iter().any(|(known, _)| *known == name.trim_end_matches('.')) {
            answer.metadata.response_code = ResponseCode::NXDomain;
        }
        let stranger = RData::from(IpAddr::from([6, 6, 6, 6]));
        match name.split('.').next().unwrap() {
            "silent" => vec![],
            "failing" => {
                answer.metadata.response_code = ResponseCode::ServFail;
                vec![answer.to_vec().unwrap()]
            }
            "forged" => {
                let mut forged = answer.clone();
                forged.answers = vec![Record::from_rdata(query.name().clone(), 7, stranger)];
                let mut other_number = forged.clone();
                other_number.metadata.id ^= 1;
                let mut other_question = forged.clone();
                other_question.queries[0].set_name(Name::from_ascii("other.example.").unwrap());
                let mut no_answer = forged.clone();
                no_answer.metadata.message_type = MessageType::Query;
                [other_number, other_question, no_answer, answer].map(|it| it.to_vec().unwrap()).into()
            }
            "garbled" => vec![b"not DNS".to_vec(), vec![0; 12], answer.to_vec().unwrap()],
            "stranger" => {
                let name = Name::from_ascii("unasked.example.").unwrap();
                answer.add_answer(Record::from_rdata(name, 7, stranger));
                vec![answer.to_vec().unwrap()]
            }
            "big" if !tcp => {
                answer.answers.clear();
                answer.metadata.truncation = true;
                vec![answer.to_vec().unwrap()]
            }
            _ => vec![answer.to_vec().unwrap()],
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_answer_counts_if_it_is_the_servers_to_this_question_and_leads_to_an_address() {
        let zone = [
            ("one.example", "192.0.2.1"),
            ("two.example", "192.0.2.1"),
            ("two.example", "192.0.2.2"),
            ("alias.example", "=far.alias.example"),
            ("far.alias.example", "=two.example"),
            ("loop.example", "=loop.example"),
            ("six.example", "2001:db8::1"),
            ("forged.example", "192.0.2.3"),
            ("garbled.example", "192.0.2.4"),
            ("stranger.example", "192.0.2.5"),
            ("big.example", "192.0.2.6"),
        ];
        let (address, _) = server(&zone).await;
        for (host, kind, expected) in [
            ("one.example", Kind::A, Ok(&["192.0.2.1"][..])),
            ("one.example", Kind::Aaaa, Ok(&[])),
            ("two.example", Kind::A, Ok(&["192.0.2.1", "192.0.2.2"])),
            ("alias.example", Kind::A, Ok(&["192.0.2.1", "192.0.2.2"])),
            ("loop.example", Kind::A, Ok(&[])),
            ("six.example", Kind::Aaaa, Ok(&["2001:db8::1"])),
            ("six.example", Kind::A, Ok(&[])),
            ("none.example", Kind::A, Err(NoAddress::NotFound)),
            ("forged.example", Kind::A, Ok(&["192.0.2.3"])),
            ("garbled.example", Kind::A, Ok(&["192.0.2.4"])),
            ("stranger.example", Kind::A, Ok(&["192.0.2.5"])),
            ("big.example", Kind::A, Ok(&["192.0.2.6"])),
            ("no name", Kind::A, Err(NoAddress::NotFound)),
        ] {
            let expected: Result<Vec<IpAddr>, _> =
                expected.map(|texts| texts.iter().map(|text| text.parse().unwrap()).collect());
            assert_eq!(lookup(&[address], host, kind).await, expected, "{host} {kind:?}");
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_server_that_fails_is_passed_over_and_each_is_asked_twice() {
        let (first, asked) = server(&[]).await;
        let (second, _) = server(&[("failing.example", "192.0.2.1"), ("one.example", "192.0.2.1")]).await;
        // Nobody listens there.
        let closed = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        assert_eq!(lookup(&[first], "failing.example", Kind::A).await, Err(NoAddress::NoAnswer));
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        let found = lookup(&[closed, second], "one.example", Kind::A).await;
        assert_eq!(found, Ok(vec![IpAddr::from([192, 0, 2, 1])]));
        assert_eq!(lookup(&[], "one.example", Kind::A).await, Err(NoAddress::NoAnswer));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_server_that_says_nothing_holds_nobody_for_longer_than_the_whole_may_take() {
        let (silent, asked) = server(&[]).await;
        tokio::time::pause();
        let begun = tokio::time::Instant::now();
        assert_eq!(lookup(&[silent; 3], "silent.example", Kind::A).await, Err(NoAddress::NoAnswer));
        assert!(begun.elapsed() <= LONGEST + Duration::from_millis(100), "{:?}", begun.elapsed());
        assert!(asked.load(Ordering::Relaxed) <= 3);
    }
}
