//! The session's name server: what programs ask on port 53 of any address.
//!
//! A name that an entry of the list is gets looked up and its IPv4 addresses are given out; any other is refused at once, so
//! that no label travels. Sessions have no way to IPv6, and nothing but addresses is of use to them: a question for anything
//! else about an allowed name has an empty answer.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use hickory_proto::op::ResponseCode;
use ipc::edge::egress_broker::{Asker, Reason};
use ipc::sys::datagram::{self, Datagram};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Semaphore;

use crate::programs::{Found, Programs};
use crate::question::{self, LARGEST, Question, Read};
use crate::resolve::{NoAddress, Resolve};

/// The most look-ups at a time; who comes when there are as many is told that it failed.
const MOST_LOOKUPS: usize = 64;

/// The socket on which programs ask.
#[derive(Debug)]
pub(crate) struct Socket(AsyncFd<OwnedFd>);

impl Socket {
    /// Takes the descriptor the broker made.
    ///
    /// # Errors
    /// The error of the reactor.
    pub(crate) fn new(descriptor: OwnedFd) -> std::io::Result<Self> {
        ipc::sys::set_nonblocking(descriptor.as_fd())?;
        Ok(Socket(ipc::sys::register(descriptor, Interest::READABLE)?))
    }

    async fn receive(&self, buffer: &mut [u8]) -> std::io::Result<Datagram> {
        loop {
            let mut guard = self.0.readable().await?;
            let received = guard.try_io(|socket| Ok(datagram::receive(socket.as_fd(), buffer)?));
            if let Ok(received) = received {
                return received;
            }
        }
    }

    /// Sends an answer from where it was asked; one for which there is no room is lost, as datagrams are.
    fn send(&self, bytes: &[u8], question: Datagram) {
        let _ = datagram::send(self.0.as_fd(), bytes, question.to, question.from);
    }
}

/// Answers for ever.
pub(crate) async fn serve<R: Resolve>(socket: Socket, programs: Arc<Programs<R>>) {
    let socket = Arc::new(socket);
    let room = Arc::new(Semaphore::new(MOST_LOOKUPS));
    let mut buffer = vec![0; LARGEST];
    loop {
        // An error is of one datagram: the next may be better.
        if let Ok(datagram) = socket.receive(&mut buffer).await {
            let bytes = buffer.get(..datagram.length).unwrap_or_default();
            take(&socket, &programs, &room, bytes, datagram);
        }
        // A program that asks without end does not keep the others waiting.
        tokio::task::yield_now().await;
    }
}

fn take<R: Resolve>(
    socket: &Arc<Socket>,
    programs: &Arc<Programs<R>>,
    room: &Arc<Semaphore>,
    bytes: &[u8],
    datagram: Datagram,
) {
    let question = match question::read(bytes, !datagram.truncated) {
        Read::Question(question) => question,
        Read::Answer(answer) => return socket.send(&answer, datagram),
        Read::Nothing => return,
    };
    let answer = |code| socket.send(&question.answer(code, &[]), datagram);
    // The session's own loopback, whatever the list says (RFC 6761). Nothing is bound: a connection is judged by its address.
    if question.name().is_some_and(|name| name == "localhost") {
        let own = if question.wants_addresses() { &[Ipv4Addr::LOCALHOST][..] } else { &[] };
        return socket.send(&question.answer(ResponseCode::NoError, own), datagram);
    }
    let Some(name) = question.name().filter(|name| programs.names(name)) else {
        programs.reports.refused(Asker::Lookup, &question.shown(), Reason::NotListed);
        return answer(ResponseCode::Refused);
    };
    if !question.wants_addresses() {
        return answer(ResponseCode::NoError);
    }
    let Ok(permit) = Arc::clone(room).try_acquire_owned() else { return answer(ResponseCode::ServFail) };
    let (socket, programs) = (Arc::clone(socket), Arc::clone(programs));
    tokio::spawn(async move {
        let (code, addresses) = found(&programs, &question, &name).await;
        socket.send(&question.answer(code, &addresses), datagram);
        drop(permit);
    });
}

async fn found<R: Resolve>(
    programs: &Programs<R>,
    question: &Question,
    name: &str,
) -> (ResponseCode, Vec<Ipv4Addr>) {
    match programs.look_up(name).await {
        Found::Addresses(addresses) => (ResponseCode::NoError, addresses),
        Found::Refused => {
            programs.reports.refused(Asker::Lookup, &question.shown(), Reason::Address);
            (ResponseCode::Refused, Vec::new())
        }
        Found::NoAddress(NoAddress::NotFound) => (ResponseCode::NXDomain, Vec::new()),
        Found::NoAddress(NoAddress::NoAnswer) => (ResponseCode::ServFail, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use hickory_proto::op::Message;
    use hickory_proto::rr::{RData, RecordType};
    use ipc::edge::egress_broker::EgressToBroker;

    use super::*;
    use crate::programs::tests::programs;
    use crate::question::tests::ask;

    /// A socket that tells destinations, of this namespace.
    fn socket() -> (OwnedFd, u16) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::Ipv4PacketInfo, &true).unwrap();
        (socket.into(), port)
    }

    #[tokio::test(flavor = "current_thread")]
    async fn an_allowed_name_is_looked_up_and_everything_else_is_answered_at_once() {
        let (programs, mut told) = programs();
        let (descriptor, port) = socket();
        let server = tokio::spawn(serve(Socket::new(descriptor).unwrap(), Arc::new(programs)));
        let asker = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        asker.connect(("127.0.0.1", port)).await.unwrap();
        use RecordType::{A, AAAA, ANY, MX, TXT};
        use ResponseCode::{NXDomain, NoError, Refused, ServFail};
        for (name, kind, code, addresses, reported) in [
            ("bare.example.", A, NoError, &["1.1.1.3", "1.1.1.4"][..], None),
            ("BARE.Example.", A, NoError, &["1.1.1.3", "1.1.1.4"], None),
            ("bare.example.", AAAA, NoError, &[], None),
            ("bare.example.", TXT, NoError, &[], None),
            ("bare.example.", MX, NoError, &[], None),
            ("bare.example.", ANY, NoError, &[], None),
            ("localhost.", A, NoError, &["127.0.0.1"], None),
            ("localhost.", AAAA, NoError, &[], None),
            ("x.localhost.", A, Refused, &[], Some(("x.localhost", Reason::NotListed))),
            ("six.example.", A, NoError, &[], None),
            ("gone.example.", A, NXDomain, &[], None),
            ("silent.example.", A, ServFail, &[], None),
            ("inside.example.", A, Refused, &[], Some(("inside.example", Reason::Address))),
            ("evil.example.", A, Refused, &[], Some(("evil.example", Reason::NotListed))),
            ("evil.example.", TXT, Refused, &[], None),
            ("secret.bare.example.", A, Refused, &[], Some(("secret.bare.example", Reason::NotListed))),
            ("10.0.0.5.", A, Refused, &[], Some(("10.0.0.5", Reason::NotListed))),
            (".", A, Refused, &[], Some(("", Reason::NotListed))),
        ] {
            let asked = ask(name, kind);
            asker.send(&asked.to_vec().unwrap()).await.unwrap();
            let mut buffer = [0; 4096];
            let length = tokio::time::timeout(Duration::from_secs(10), asker.recv(&mut buffer)).await;
            let answer = Message::from_vec(&buffer[..length.unwrap().unwrap()]).unwrap();
            assert_eq!(answer.metadata.response_code, code, "{name} {kind}");
            assert_eq!(answer.queries, asked.queries, "{name} {kind}");
            let given: Vec<_> = answer.answers.iter().map(|record| record.data.clone()).collect();
            let expected: Vec<_> =
                addresses.iter().map(|text| RData::from(text.parse::<Ipv4Addr>().unwrap())).collect();
            assert_eq!(given, expected, "{name} {kind}");
            if let Some(reported) = reported {
                let EgressToBroker::NetworkDenied { asker, destination, reason, count } =
                    told.receive().await.unwrap().message;
                assert_eq!(
                    (asker, destination.as_str(), reason, count),
                    (Asker::Lookup, reported.0, reported.1, 1)
                );
            }
        }
        asker.send(b"too short").await.unwrap();
        asker.send(&[0; 5000]).await.unwrap();
        let mut buffer = [0; 4096];
        let length = asker.recv(&mut buffer).await.unwrap();
        let answer = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!(answer.metadata.response_code, ResponseCode::FormErr, "and nothing for what is too short");
        server.abort();
    }
}
