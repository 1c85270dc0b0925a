//! What one call of a component may use: memory, tables, instances, time. A store lives for one call.

use std::fs::File;
use std::time::{Duration, Instant};

use ipc::edge::host_broker::ComponentLimits;
use wasmtime::component::ResourceTable;
use wasmtime::{Engine, ResourceLimiter, Store, UpdateDeadline};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use crate::http::Hooks;
use crate::process::Access;

/// Milliseconds between two counts of the epoch.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// Host-side resources (files, streams, requests) one call may hold at a time. Most are a descriptor, and this process has 4096,
/// of which clients and programs need some.
const MAX_RESOURCES: usize = 2_000;
/// Linear memories and tables of one call; their sizes are bounded in sum.
const MAX_MEMORIES: usize = 100;

/// A store's data.
pub(crate) struct CallState {
    table: ResourceTable,
    wasi: WasiCtx,
    http: WasiHttpCtx,
    hooks: Hooks,
    limiter: Limiter,
    /// The way to programs.
    pub(crate) processes: Access,
    deadline: Instant,
    out_of_time: bool,
    /// The directory the guest sees as `.`.
    pub(crate) directory: Option<File>,
    /// What the guest reported over `murmur:stream`, counted.
    pub(crate) stream: StreamCounts,
}

/// Calls of `murmur:stream/events`; nobody watches yet.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamCounts {
    pub(crate) chunks: u64,
    pub(crate) tool_calls: u64,
}

/// Why a call did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    #[error(
        "E-RUN-001: {artifact}: ran longer than {seconds} seconds (capabilities.limits.deadline_seconds)"
    )]
    Deadline { artifact: String, seconds: u64 },
    #[error("E-RUN-001: {artifact}: {limit}")]
    Limit { artifact: String, limit: String },
    #[error("E-RUN-001: {artifact}: {trap}")]
    Trap { artifact: String, trap: String },
    #[error("{artifact}: {reason}")]
    Host { artifact: String, reason: String },
}

/// A fresh store for one call.
pub(crate) fn new(
    engine: &Engine,
    limits: &ComponentLimits,
    wasi: WasiCtx,
    hooks: Hooks,
    processes: Access,
    directory: Option<File>,
) -> Store<CallState> {
    let mut table = ResourceTable::new();
    table.set_max_capacity(MAX_RESOURCES);
    let state = CallState {
        table,
        wasi,
        http: WasiHttpCtx::new(),
        hooks,
        limiter: Limiter { limits: *limits, memory: 0, tables: 0, hit: None },
        processes,
        deadline: Instant::now(),
        out_of_time: false,
        directory,
        stream: StreamCounts::default(),
    };
    let mut store = Store::new(engine, state);
    store.limiter(|state| &mut state.limiter);
    // Every tick the guest lets the other tasks of this thread run; past its deadline it does not come back.
    store.epoch_deadline_callback(|mut store| {
        let state = store.data_mut();
        if Instant::now() < state.deadline {
            return Ok(UpdateDeadline::Yield(1));
        }
        state.out_of_time = true;
        Ok(UpdateDeadline::Interrupt)
    });
    start_clock(&mut store, limits);
    store
}

/// Gives the next step of the call (instantiation, the call itself) the whole deadline.
pub(crate) fn start_clock(store: &mut Store<CallState>, limits: &ComponentLimits) {
    let deadline = Instant::now() + allowed(limits);
    let state = store.data_mut();
    state.deadline = deadline;
    state.hooks.set_deadline(deadline);
    store.set_epoch_deadline(1);
}

/// The time one step may take.
pub(crate) fn allowed(limits: &ComponentLimits) -> Duration {
    Duration::from_secs(limits.deadline_seconds.clamp(1, 86_400))
}

impl CallState {
    /// When the time of the step that runs is over.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Both things `preopens` needs.
    pub(crate) fn preopens(&mut self) -> (&mut ResourceTable, Option<&File>) {
        (&mut self.table, self.directory.as_ref())
    }

    /// The class of a failure: what the limits know comes before what the engine says.
    pub(crate) fn classify(&self, artifact: &str, error: &wasmtime::Error) -> CallError {
        let artifact = artifact.to_owned();
        if self.out_of_time {
            return CallError::Deadline { artifact, seconds: self.limiter.limits.deadline_seconds };
        }
        if let Some(limit) = self.limiter.hit.clone() {
            return CallError::Limit { artifact, limit };
        }
        let trap = match error.downcast_ref::<wasmtime::Trap>() {
            Some(trap) => trap.to_string(),
            None => format!("{error:#}"),
        };
        CallError::Trap { artifact, trap }
    }
}

impl WasiView for CallState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for CallState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.hooks, table: &mut self.table, ctx: &mut self.http }
    }
}

impl crate::load::bindings::murmur::stream::events::Host for CallState {
    fn emit_chunk(&mut self, _chunk: String) {
        self.stream.chunks += 1;
    }

    fn emit_thinking_chunk(&mut self, _chunk: String) {
        self.stream.chunks += 1;
    }

    fn tool_call_started(&mut self, _id: String, _name: String) {
        self.stream.tool_calls += 1;
    }

    fn tool_call_input_bytes(&mut self, _id: String, _bytes: u64) {}
}

/// Sums what all instances of a call take.
struct Limiter {
    limits: ComponentLimits,
    memory: u64,
    tables: u64,
    hit: Option<String>,
}

impl Limiter {
    /// Whether `sum` may grow from `current` to `desired` and stay within `limit`.
    fn grow(sum: u64, current: usize, desired: usize, limit: u64) -> Result<u64, u64> {
        let after = sum.saturating_add(desired.saturating_sub(current) as u64);
        if after <= limit { Ok(after) } else { Err(after) }
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        match Limiter::grow(self.memory, current, desired, self.limits.memory_bytes) {
            Ok(after) => {
                self.memory = after;
                Ok(true)
            }
            Err(after) => {
                let limit = self.limits.memory_bytes;
                self.hit = Some(format!(
                    "wanted {after} bytes of memory of {limit} allowed (capabilities.limits.memory_bytes)"
                ));
                Ok(false)
            }
        }
    }

    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        match Limiter::grow(self.tables, current, desired, self.limits.table_elements) {
            Ok(after) => {
                self.tables = after;
                Ok(true)
            }
            Err(after) => {
                let limit = self.limits.table_elements;
                self.hit = Some(format!(
                    "wanted {after} table elements of {limit} allowed (capabilities.limits.table_elements)"
                ));
                Ok(false)
            }
        }
    }

    fn instances(&self) -> usize {
        usize::try_from(self.limits.instances).unwrap_or(usize::MAX)
    }

    fn tables(&self) -> usize {
        MAX_MEMORIES
    }

    fn memories(&self) -> usize {
        MAX_MEMORIES
    }
}

/// Counts the epoch up from a thread of its own: a guest that never returns to the runtime cannot stop it. The thread ends
/// with the process.
///
/// # Errors
/// The error of the thread's start.
pub(crate) fn start_ticker(engine: &Engine) -> std::io::Result<()> {
    let engine = engine.weak();
    std::thread::Builder::new().name("epoch".into()).stack_size(64 * 1024).spawn(move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            std::thread::sleep(TICK);
        }
    })?;
    Ok(())
}
