//! Telling the broker what programs were refused, without letting a loop flood the record: the first refusal of a kind is
//! told at once, before the program learns of it; the same ones of the second after that are counted and told together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipc::aio::AsyncSender;
use ipc::edge::egress_broker::{Asker, EgressToBroker, Reason};
use tokio::sync::Notify;

use crate::rules::Denied;

/// How long the same refusals are counted together.
const WINDOW: Duration = Duration::from_secs(1);

/// The most kinds that are told one by one in one window.
const MOST: usize = 64;

/// How long the broker may take to read what was counted.
const PATIENCE: Duration = Duration::from_secs(10);

/// Refusals of programs.
#[derive(Debug, Default)]
pub(crate) struct Denials {
    window: Mutex<BTreeMap<Denied, u64>>,
    opened: Notify,
}

impl Denials {
    /// Takes a refusal; what is returned is to be told now.
    fn take(&self, denied: Denied) -> Option<Denied> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = window.get_mut(&denied) {
            *count = count.saturating_add(1);
            return None;
        }
        if window.len() >= MOST {
            let others = Denied { destination: String::new(), reason: Reason::Others, ..denied };
            let count = window.entry(others).or_insert(0);
            *count = count.saturating_add(1);
            return None;
        }
        if window.is_empty() {
            self.opened.notify_one();
        }
        window.insert(denied.clone(), 0);
        Some(denied)
    }

    /// What the window counted; it is a new one then.
    fn close(&self) -> Vec<(Denied, u64)> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *window).into_iter().filter(|(_, count)| *count > 0).collect()
    }

    fn untold(&self, denied: &Denied) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = window.get_mut(denied) {
            *count = count.saturating_add(1);
        }
    }
}

/// Where refusals of programs are told.
#[derive(Debug, Clone)]
pub(crate) struct Reports {
    denials: Arc<Denials>,
    broker: AsyncSender<EgressToBroker>,
}

impl Reports {
    pub(crate) fn new(broker: AsyncSender<EgressToBroker>) -> Self {
        Reports { denials: Arc::default(), broker }
    }

    /// Takes a refusal and tells it, or counts it. Never waits.
    pub(crate) fn refused(&self, asker: Asker, destination: &str, reason: Reason) {
        let told = self.denials.take(Denied::to_program(asker, destination, reason));
        if let Some(denied) = told
            && self.broker.try_send(&denied.event(1)).is_err()
        {
            self.denials.untold(&denied);
        }
    }

    /// Tells what is counted, second by second and for ever.
    pub(crate) async fn tell(&self) {
        loop {
            self.denials.opened.notified().await;
            tokio::time::sleep(WINDOW).await;
            self.tell_now().await;
        }
    }

    /// Tells what was counted so far: also at the end, when no second passes any more.
    pub(crate) async fn tell_now(&self) {
        for (denied, count) in self.denials.close() {
            match tokio::time::timeout(PATIENCE, self.broker.send(&denied.event(count))).await {
                Ok(Ok(())) => {}
                // A broker that is gone ends this process through the control channel.
                Ok(Err(_)) | Err(_) => crate::say("refused destinations could not be reported"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn the_first_of_a_kind_is_told_at_once_and_the_rest_of_the_second_together() {
        let (broker, far) = ipc::pair::<EgressToBroker, ipc::Never>().unwrap();
        let (_, mut broker_side) = ipc::aio::split(far).unwrap();
        let (sender, _receiver) = ipc::aio::split(broker).unwrap();
        let reports = Reports::new(sender);
        let telling = reports.clone();
        let task = tokio::spawn(async move { telling.tell().await });
        let kind = |n: usize| format!("h{n}.example:80");
        for n in 0..MOST + 10 {
            for _ in 0..3 {
                reports.refused(Asker::Program, &kind(n), Reason::NotListed);
            }
        }
        let mut told = Vec::new();
        for _ in 0..=2 * MOST {
            let EgressToBroker::NetworkDenied { destination, reason, count, .. } =
                broker_side.receive().await.unwrap().message;
            told.push((destination, reason, count));
        }
        let first: Vec<_> = (0..MOST).map(|n| (kind(n), Reason::NotListed, 1)).collect();
        assert_eq!(told[..MOST], first);
        let mut rest = told.split_off(MOST);
        rest.sort_by_key(|(destination, ..)| destination.clone());
        assert_eq!(rest.remove(0), (String::new(), Reason::Others, 30));
        let mut again: Vec<_> = (0..MOST).map(|n| (kind(n), Reason::NotListed, 2)).collect();
        again.sort();
        assert_eq!(rest, again);
        // A new window: told at once again.
        reports.refused(Asker::Program, &kind(0), Reason::NotListed);
        let EgressToBroker::NetworkDenied { count, .. } = broker_side.receive().await.unwrap().message;
        assert_eq!(count, 1);
        task.abort();
    }
}
