//! One module per edge of the process picture, each with the messages of its two directions.
//!
//! Naming: a message enum is called after its direction, `<from>To<to>`. Which edge a channel is, is its type; who the peer
//! is, is which descriptor one holds.

pub mod broker_fileserver;
pub mod compiler;
pub mod control;
pub mod door_broker;
pub mod door_fileserver;
pub mod door_host;
pub mod egress_broker;
pub mod host_broker;
pub mod host_egress;
pub mod host_runner;
pub mod runner_broker;
