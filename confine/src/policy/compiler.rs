//! The compiler: bytes in by descriptor, native code out by descriptor; no files, no sockets, no executable page.

use super::Table;
use super::common::{CHANNELS, CORE, NO_CLONE3, THREADS};

pub(crate) const TABLE: Table = Table { groups: &[CORE, CHANNELS, THREADS], absent: NO_CLONE3 };
