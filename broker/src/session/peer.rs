//! The peer plane as the broker sees it: which handles are being redeemed or minted right now, and who is to hear of it.
//!
//! Nothing is kept per handle; what is kept per request in flight is bounded. The door's thread verifies and asks the
//! fileserver, the fileserver's thread records what came of it. Bytes of files never come here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipc::Sender;
use ipc::edge::broker_fileserver::BrokerToFileserver;
use ipc::edge::door_broker::BrokerToDoor;
use ipc::edge::host_broker::BrokerToHost;
use ipc::memory::CounterWriter;
use ipc::types::{PlaneCode, RelPath, RequestId};

use crate::minter::Minter;
use crate::trace::{Entry, Trace};

/// Redeems in flight; a door serves fewer connections than this.
const MAX_REDEEMS: usize = 1024;

/// Mints in flight: sandbox-host runs one tool at a time, and may have given some up.
const MAX_MINTS: usize = 16;

/// The longest audience that is signed; one that is asserted is cut far beyond it.
const MAX_AUDIENCE: usize = 1024;

/// What all reading threads share.
#[derive(Debug)]
pub(crate) struct Peer {
    minter: Mutex<Option<Arc<Minter>>>,
    trace: Trace,
    generation: Arc<CounterWriter>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The fileserver of the moment, and its number.
    fileserver: Option<(u64, Sender<BrokerToFileserver>)>,
    /// One that has no door yet.
    doorless: Option<(u64, Sender<BrokerToFileserver>)>,
    fileservers: u64,
    redeems: BTreeMap<RequestId, Redeem>,
    mints: BTreeMap<RequestId, Mint>,
    next_mint: u64,
}

#[derive(Debug)]
struct Redeem {
    fileserver: u64,
    handle_id: String,
    path: String,
    audience: String,
    door: Sender<BrokerToDoor>,
    /// The door waits for no answer any more.
    abandoned: bool,
}

#[derive(Debug)]
struct Mint {
    fileserver: u64,
    /// Sandbox-host's own number.
    id: RequestId,
    path: String,
    audience: String,
    ttl: Option<Duration>,
    host: Sender<BrokerToHost>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peer {
    /// A plane without a key: every handle is refused until [`Peer::begin`].
    pub(crate) fn new(trace: Trace, generation: Arc<CounterWriter>) -> Arc<Self> {
        Arc::new(Peer { minter: Mutex::default(), trace, generation, state: Mutex::default() })
    }

    /// Takes the key, after the other processes were started.
    pub(crate) fn begin(&self, minter: Minter) {
        *locked(&self.minter) = Some(Arc::new(minter));
    }

    /// Gives the key up: it is overwritten as soon as a verification that runs has ended.
    pub(crate) fn end(&self) {
        locked(&self.minter).take();
    }

    fn minter(&self) -> Option<Arc<Minter>> {
        locked(&self.minter).clone()
    }

    /// A fileserver is there, and takes requests once it has a door ([`Peer::fileserver_wired`]); the number is for
    /// [`Peer::fileserver_gone`].
    pub(crate) fn fileserver_came(&self, sender: Sender<BrokerToFileserver>) -> u64 {
        let mut state = locked(&self.state);
        state.fileservers += 1;
        let number = state.fileservers;
        state.doorless = Some((number, sender));
        number
    }

    /// The fileserver was told of the door: what it is asked from now on, it can answer.
    pub(crate) fn fileserver_wired(&self) {
        let mut state = locked(&self.state);
        if let Some(came) = state.doorless.take() {
            state.fileserver = Some(came);
        }
    }

    /// Everything a fileserver was asked and did not answer is over.
    pub(crate) fn fileserver_gone(&self, number: u64) {
        let (redeems, mints) = {
            let mut state = locked(&self.state);
            let of_it =
                |held: &Option<(u64, Sender<_>)>| held.as_ref().is_some_and(|(held, _)| *held == number);
            if of_it(&state.fileserver) {
                state.fileserver = None;
            }
            if of_it(&state.doorless) {
                state.doorless = None;
            }
            let redeems: Vec<_> =
                state.redeems.extract_if(.., |_, redeem| redeem.fileserver == number).collect();
            let mints: Vec<_> = state.mints.extract_if(.., |_, mint| mint.fileserver == number).collect();
            (redeems, mints)
        };
        for (id, redeem) in redeems {
            // A door that is gone too needs no answer; one that does not read is ended when it is next heard of.
            let _ = self.refuse(id, redeem, PlaneCode::IoError);
        }
        for (_, mint) in mints {
            let _ = self.fail_mint(mint, PlaneCode::IoError);
        }
    }

    /// Verifies a handle and has its file served.
    ///
    /// # Errors
    /// What the door did wrong.
    pub(crate) fn redeem(
        &self,
        id: RequestId,
        payload: &str,
        mac: &str,
        audience: String,
        door: &Sender<BrokerToDoor>,
    ) -> Result<(), String> {
        let handle_id = handle::handle_id(&format!("{}{payload}.{mac}", handle::TAG));
        let mut redeem = Redeem {
            fileserver: 0,
            handle_id,
            path: String::new(),
            audience,
            door: door.clone(),
            abandoned: false,
        };
        let Some(minter) = self.minter() else {
            return self.refuse_unverified(id, redeem, PlaneCode::HandleNotValid, None);
        };
        let path = match minter.verify(payload, mac, &redeem.audience.to_ascii_lowercase()) {
            Ok(path) => path,
            Err((code, path)) => return self.refuse_unverified(id, redeem, code, path),
        };
        drop(minter);
        path.as_str().clone_into(&mut redeem.path);
        let fileserver = {
            let mut state = locked(&self.state);
            if state.redeems.contains_key(&id) {
                return Err("it used the identifier of a redeem in flight again".into());
            }
            match state.fileserver.clone() {
                Some((number, fileserver)) if state.redeems.len() < MAX_REDEEMS => {
                    redeem.fileserver = number;
                    state.redeems.insert(id, redeem);
                    fileserver
                }
                _ => {
                    drop(state);
                    return self.refuse(id, redeem, PlaneCode::IoError);
                }
            }
        };
        if fileserver.send(&BrokerToFileserver::VerifiedRead { id, path }).is_err()
            && let Some(redeem) = self.take_redeem(id)
        {
            return self.refuse(id, redeem, PlaneCode::IoError);
        }
        Ok(())
    }

    /// The door's client is gone, or waited too long: nobody there is to be answered any more. The record is what the fileserver
    /// says, for the door alone knows whether bytes went out, and its word is not taken for it.
    pub(crate) fn abandon(&self, id: RequestId) {
        if let Some(redeem) = locked(&self.state).redeems.get_mut(&id) {
            redeem.abandoned = true;
        }
    }

    /// The fileserver has read a file for a redeem.
    pub(crate) fn redeemed(
        &self,
        id: RequestId,
        generation: u64,
        outcome: Result<(u64, [u8; 32]), PlaneCode>,
    ) {
        if let Some(redeem) = self.take_redeem(id) {
            self.record(&redeem.handle_id, Some(redeem.path), generation, redeem.audience, outcome);
        }
    }

    fn take_redeem(&self, id: RequestId) -> Option<Redeem> {
        locked(&self.state).redeems.remove(&id)
    }

    fn refuse(&self, id: RequestId, redeem: Redeem, code: PlaneCode) -> Result<(), String> {
        let path = Some(redeem.path.clone());
        self.refuse_unverified(id, redeem, code, path)
    }

    /// Records a refusal, then tells the door, which has to have room for it.
    fn refuse_unverified(
        &self,
        id: RequestId,
        redeem: Redeem,
        code: PlaneCode,
        path: Option<String>,
    ) -> Result<(), String> {
        self.record(&redeem.handle_id, path, self.generation.get(), redeem.audience, Err(code));
        if redeem.abandoned {
            return Ok(());
        }
        answered(redeem.door.try_send(&BrokerToDoor::Refused { id, code }, &[]))
    }

    fn record(
        &self,
        handle_id: &str,
        path: Option<String>,
        generation: u64,
        audience: String,
        outcome: Result<(u64, [u8; 32]), PlaneCode>,
    ) {
        self.trace.record(Entry::Redeem {
            handle_id: handle_id.to_owned(),
            path,
            generation,
            audience: Some(audience),
            outcome,
            process: "broker",
        });
    }

    /// Begins to mint: asks where the path leads.
    ///
    /// # Errors
    /// What sandbox-host did wrong.
    pub(crate) fn mint(
        &self,
        id: RequestId,
        path: RelPath,
        audience: String,
        ttl_ms: Option<u64>,
        host: &Sender<BrokerToHost>,
    ) -> Result<(), String> {
        if self.minter().is_none() {
            return Err("it asked for a handle of a plane that is not declared".into());
        }
        if audience.is_empty()
            || audience.len() > MAX_AUDIENCE
            || audience.bytes().any(|byte| !byte.is_ascii() || byte.is_ascii_uppercase())
        {
            return Err("it asked for a handle for no possible audience".into());
        }
        let ttl = ttl_ms.map(Duration::from_millis);
        let mut mint =
            Mint { fileserver: 0, id, path: path.as_str().to_owned(), audience, ttl, host: host.clone() };
        let (number, fileserver) = {
            let mut state = locked(&self.state);
            match state.fileserver.clone() {
                Some((of, fileserver)) if state.mints.len() < MAX_MINTS => {
                    mint.fileserver = of;
                    let number = RequestId(state.next_mint);
                    state.next_mint += 1;
                    state.mints.insert(number, mint);
                    (number, fileserver)
                }
                _ => {
                    drop(state);
                    return self.fail_mint(mint, PlaneCode::IoError);
                }
            }
        };
        if fileserver.send(&BrokerToFileserver::Canonicalise { id: number, path }).is_err() {
            let mint = locked(&self.state).mints.remove(&number);
            return mint.map_or(Ok(()), |mint| self.fail_mint(mint, PlaneCode::IoError));
        }
        Ok(())
    }

    /// Where the path leads: signs.
    ///
    /// # Errors
    /// What sandbox-host did wrong.
    pub(crate) fn canonical(
        &self,
        number: RequestId,
        outcome: Result<RelPath, PlaneCode>,
    ) -> Result<(), String> {
        let Some(mint) = locked(&self.state).mints.remove(&number) else { return Ok(()) };
        let signed = outcome.and_then(|path| {
            let minter = self.minter().ok_or(PlaneCode::IoError)?;
            Ok((minter.mint(&path, &mint.audience, mint.ttl)?, path))
        });
        match signed {
            Ok((minted, path)) => {
                self.trace.record(Entry::Mint {
                    path: path.into(),
                    audience: mint.audience,
                    outcome: Ok((minted.handle_id.clone(), minted.expires_at_ms)),
                });
                let outcome = Ok(minted);
                answered(mint.host.try_send(&BrokerToHost::Minted { id: mint.id, outcome }, &[]))
            }
            Err(code) => self.fail_mint(mint, code),
        }
    }

    fn fail_mint(&self, mint: Mint, code: PlaneCode) -> Result<(), String> {
        self.trace.record(Entry::Mint { path: mint.path, audience: mint.audience, outcome: Err(code) });
        answered(mint.host.try_send(&BrokerToHost::Minted { id: mint.id, outcome: Err(code) }, &[]))
    }
}

/// An answer that could not be delivered at once: the peer is gone, which its pidfd tells, or does not read, which is its
/// fault; the threads that record what is served never wait for it.
fn answered(sent: Result<(), ipc::ChannelError>) -> Result<(), String> {
    match sent {
        Ok(()) | Err(ipc::ChannelError::Closed) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
