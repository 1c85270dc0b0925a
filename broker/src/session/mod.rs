//! A session: how it is launched, supervised and ended.

pub(crate) mod agent;
pub(crate) mod class;
pub(crate) mod compile;
pub(crate) mod launch;
pub(crate) mod peer;
pub(crate) mod places;
pub(crate) mod process;
pub(crate) mod readers;
pub(crate) mod report;
pub(crate) mod signals;
pub(crate) mod starter;
pub(crate) mod supervise;
