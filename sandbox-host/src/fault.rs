//! What ends this process besides an order: a peer that went away or broke the rules.

/// Why the session cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// Control or session channel of the broker.
    #[error("broker: {0}")]
    Broker(String),
    /// The runner.
    #[error("runner: {0}")]
    Runner(String),
    /// The door sent something that is no request.
    #[error("door: {0}")]
    Door(String),
    /// Egress sent something.
    #[error("egress: {0}")]
    Egress(String),
    /// This process itself.
    #[error("sandbox-host: {0}")]
    Own(String),
}
