//! Which names an address was given out for: the memory of the session's resolver, and written by it alone.
//!
//! A connection arrives with an address and no name. What the program asked for before is the only thing that tells one site
//! from another behind the same address.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long an answer binds its addresses to its name.
const LIFETIME: Duration = Duration::from_secs(300);

/// The most addresses that are bound at a time.
const MOST: usize = 4096;

/// Names by address, each until when.
#[derive(Debug, Default)]
pub(crate) struct Bindings(Mutex<BTreeMap<Ipv4Addr, Vec<(String, Instant)>>>);

impl Bindings {
    /// Binds the addresses of an answer to its name, each at least until the answer has expired at the asker; returns those
    /// for which there was room.
    pub(crate) fn bind(&self, name: &str, addresses: &[Ipv4Addr]) -> Vec<Ipv4Addr> {
        let now = Instant::now();
        let mut bound = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bound.len() + addresses.len() > MOST {
            bound.retain(|_, names| {
                names.retain(|(_, until)| *until > now);
                !names.is_empty()
            });
        }
        let mut given = Vec::new();
        for address in addresses {
            if bound.len() >= MOST && !bound.contains_key(address) {
                continue;
            }
            let names = bound.entry(*address).or_default();
            names.retain(|(known, until)| known != name && *until > now);
            names.push((name.to_owned(), now + LIFETIME));
            given.push(*address);
        }
        given
    }

    /// The names an address is bound to.
    pub(crate) fn names(&self, address: Ipv4Addr) -> Vec<String> {
        let now = Instant::now();
        let bound = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let names = bound.get(&address).map_or(&[][..], Vec::as_slice);
        names.iter().filter(|(_, until)| *until > now).map(|(name, _)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn names_accumulate_and_each_expires_by_itself() {
        let bindings = Bindings::default();
        let address = Ipv4Addr::new(1, 1, 1, 1);
        assert!(bindings.names(address).is_empty());
        assert_eq!(bindings.bind("a.example", &[address]), [address]);
        tokio::time::advance(LIFETIME / 2).await;
        bindings.bind("b.example", &[address]);
        assert_eq!(bindings.names(address), ["a.example", "b.example"]);
        tokio::time::advance(LIFETIME / 2).await;
        assert_eq!(bindings.names(address), ["b.example"]);
        bindings.bind("b.example", &[address]);
        tokio::time::advance(LIFETIME / 2).await;
        assert_eq!(bindings.names(address), ["b.example"], "an answer renews");
        tokio::time::advance(LIFETIME / 2).await;
        assert!(bindings.names(address).is_empty());
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn there_is_a_bound_and_what_has_expired_makes_room() {
        let bindings = Bindings::default();
        let many: Vec<Ipv4Addr> = (0..4096_u32).map(Ipv4Addr::from).collect();
        assert_eq!(bindings.bind("a.example", &many).len(), MOST);
        let one = Ipv4Addr::new(1, 1, 1, 1);
        assert!(bindings.bind("b.example", &[one]).is_empty());
        assert_eq!(bindings.bind("b.example", &[many[0]]), [many[0]], "known addresses need no room");
        tokio::time::advance(LIFETIME).await;
        assert_eq!(bindings.bind("b.example", &[one]), [one]);
    }
}
