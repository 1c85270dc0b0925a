//! Many reads while the files change underneath: nothing outside may ever come back, and every hash must be of its body.
//!
//! A [`Hammer`] knows nothing of a plane but bytes to send, codes to accept and words that must never be seen; whoever
//! changes the files meanwhile is a [`Flipper`].

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::http;
use crate::programs;

/// Requests sent over and over, and what may come back.
pub struct Hammer<'h> {
    /// Where they are sent, `http://…`.
    pub url: &'h str,
    /// Whole requests, sent in turn, each on a connection of its own.
    pub requests: &'h [Vec<u8>],
    /// How many are sent in all.
    pub count: usize,
    /// By how many clients.
    pub clients: usize,
    /// The refusals that may come.
    pub refusals: &'h [(&'h str, u16)],
    /// What no answer may contain, head or body.
    pub canary: &'h [u8],
    /// What a served body must be besides what its etag says.
    pub body: &'h (dyn Fn(&[u8]) -> bool + Sync),
}

/// How often each answer came: `ok`, or the code of a refusal.
pub type Tally = BTreeMap<String, usize>;

impl Hammer<'_> {
    /// Sends them all.
    ///
    /// # Errors
    /// The first answer that is not as it must be.
    pub fn strike(&self) -> Result<Tally, String> {
        let next = AtomicUsize::new(0);
        let tally = Mutex::new(Tally::new());
        let failure = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..self.clients {
                scope.spawn(|| {
                    let mut own = Tally::new();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= self.count {
                            break;
                        }
                        match self.one(&self.requests[number % self.requests.len()]) {
                            Ok(outcome) => *own.entry(outcome).or_default() += 1,
                            Err(reason) => {
                                next.store(self.count, Ordering::Relaxed);
                                let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                                failure.get_or_insert(format!("request {number}: {reason}"));
                            }
                        }
                    }
                    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                    for (outcome, times) in own {
                        *tally.entry(outcome).or_default() += times;
                    }
                });
            }
        });
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(reason) => Err(reason),
            None => Ok(tally.into_inner().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    fn one(&self, request: &[u8]) -> Result<String, String> {
        let shown = |answer: &[u8]| String::from_utf8_lossy(&answer[..answer.len().min(1000)]).into_owned();
        let answer = http::exchange(self.url, request, http::PATIENCE).map_err(|error| error.to_string())?;
        if holds(&answer, self.canary) {
            return Err(format!("what lies outside was served: {}", shown(&answer)));
        }
        let response = http::parse(&answer).map_err(|error| error.to_string())?;
        let length = response.header("content-length").and_then(|length| length.parse().ok());
        if length != Some(response.body.len()) {
            return Err(format!("{} bytes came of {length:?}: {}", response.body.len(), shown(&answer)));
        }
        if response.status == 200 {
            let etag = format!("\"sha256:{}\"", programs::sha256(&response.body));
            if response.header("etag") != Some(&etag) {
                return Err(format!("the hash of the body is {etag}: {}", shown(&answer)));
            }
            if !(self.body)(&response.body) {
                return Err(format!("not a body that may be served: {}", shown(&answer)));
            }
            return Ok("ok".to_owned());
        }
        let code: Option<String> = serde_json::from_slice(&response.body)
            .ok()
            .and_then(|body: serde_json::Value| Some(body["error"].as_str()?.to_owned()));
        let known = self
            .refusals
            .iter()
            .any(|(code_, status)| code.as_deref() == Some(*code_) && response.status == *status);
        match code {
            Some(code) if known => Ok(code),
            _ => Err(format!("not an answer that may come: {}", shown(&answer))),
        }
    }
}

fn holds(bytes: &[u8], canary: &[u8]) -> bool {
    // A canary begins with a byte that nothing else has: looking for one byte is quick without optimisation, too.
    canary.first().is_some_and(|first| bytes.contains(first))
        && bytes.windows(canary.len()).any(|window| window == canary)
}

/// Changes files, again and again, until it is dropped.
pub struct Flipper {
    stop: std::sync::Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<usize>>,
}

impl Flipper {
    /// Calls `flip` with 0, 1, 2, … with the shortest of pauses between, so that the reader gets its share of the processor.
    #[must_use]
    pub fn start(mut flip: impl FnMut(usize) + Send + 'static) -> Self {
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let stopped = std::sync::Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut times = 0;
            while !stopped.load(Ordering::Relaxed) {
                flip(times);
                times += 1;
                std::thread::sleep(Duration::from_micros(1));
            }
            times
        });
        Flipper { stop, thread: Some(thread) }
    }

    /// Stops; how often it flipped.
    ///
    /// # Panics
    /// If a flip failed.
    #[must_use]
    pub fn finish(mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("stopped once").join().expect("every flip")
    }
}

impl Drop for Flipper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Exchanges two names at one blow.
///
/// # Panics
/// If the kernel refuses.
pub fn exchange(one: &Path, other: &Path) {
    let exchanged: Result<(), Errno> = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
    exchanged.unwrap_or_else(|error| panic!("{} and {}: {error}", one.display(), other.display()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Strikes a server that always gives the same answer.
    fn strike(answer: &str) -> Result<Tally, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answer = answer.to_owned();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 100]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        let hammer = Hammer {
            url: &url,
            requests: &[b"GET / HTTP/1.1\r\n\r\n".to_vec()],
            count: 20,
            clients: 2,
            refusals: &[("not_found", 404)],
            canary: b"#outside#",
            body: &|body| body != b"torn",
        };
        hammer.strike()
    }

    fn served(body: &str, of: &str) -> String {
        let hash = programs::sha256(of.as_bytes());
        format!("HTTP/1.1 200 OK\r\netag: \"sha256:{hash}\"\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    fn refusal(status: u16, code: &str) -> String {
        let body = format!("{{\"error\":\"{code}\",\"message\":\"m\"}}");
        format!("HTTP/1.1 {status} No\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    #[test]
    fn good_answers_are_counted() {
        assert_eq!(strike(&served("good", "good")).unwrap(), Tally::from([("ok".to_owned(), 20)]));
        assert_eq!(strike(&refusal(404, "not_found")).unwrap(), Tally::from([("not_found".to_owned(), 20)]));
    }

    #[test]
    fn every_bad_answer_is_found() {
        for (what, answer) in [
            ("the canary in a body", served("a #outside# b", "a #outside# b")),
            ("the canary in a refusal", refusal(404, "not_found").replace("\"m\"", "\"#outside#\"")),
            ("another hash", served("good", "bad")),
            ("a torn body", served("torn", "torn")),
            ("a short body", served("good", "good").replace("length: 4", "length: 5")),
            ("a refusal that is not accepted", refusal(403, "outside_root")),
            ("a code with another status", refusal(403, "not_found")),
            ("no answer", String::new()),
        ] {
            assert!(strike(&answer).is_err(), "{what} was not found");
        }
    }

    #[test]
    fn a_flipper_flips_until_it_is_told_to_stop() {
        let folder = crate::temporary::Temporary::new();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        std::fs::write(&one, "1").unwrap();
        std::fs::create_dir(&other).unwrap();
        let (a, b) = (one.clone(), other.clone());
        let flipper = Flipper::start(move |_| exchange(&a, &b));
        crate::process::until("both", Duration::from_secs(5), || one.is_dir().then_some(()));
        let times = flipper.finish();
        assert_eq!(one.is_dir(), times % 2 == 1, "{times}");
    }
}
