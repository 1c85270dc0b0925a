//! A clock that only runs while somebody wants it. A timer of one's own for every request would cost the runtime more than
//! most requests do.

use std::time::Duration;

use tokio::sync::{Notify, watch};

/// Ticks while it is wanted.
#[derive(Debug)]
pub struct Ticker {
    wanted: Notify,
    ticks: watch::Sender<u64>,
}

impl Default for Ticker {
    fn default() -> Self {
        Ticker { wanted: Notify::new(), ticks: watch::Sender::new(0) }
    }
}

impl Ticker {
    /// Asks for at least one more tick.
    pub fn want(&self) {
        self.wanted.notify_one();
    }

    /// Completes when a whole period has passed.
    pub async fn a_period(&self) {
        let mut ticks = self.ticks.subscribe();
        // The first tick may come at once.
        for _ in 0..2 {
            self.want();
            if ticks.changed().await.is_err() {
                return;
            }
        }
    }

    /// Ticks, and calls `each` with every tick, until it is dropped.
    pub async fn run(&self, period: Duration, each: impl Fn()) {
        loop {
            self.wanted.notified().await;
            tokio::time::sleep(period).await;
            self.ticks.send_modify(|tick| *tick = tick.wrapping_add(1));
            each();
        }
    }
}
