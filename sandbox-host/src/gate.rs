//! The one gate that every program passes before it starts, whoever asks for it: a tool of the runtime's own that runs an
//! allowed program, or a component over `murmur:process`. It judges the argument list that will run, in this order:
//!
//! 1. `capabilities.shell.allow`
//! 2. whether the task was cancelled or the session is ending
//! 3. the workdir's budget
//! 4. `capabilities.filesystem.read_only`
//! 5. the `on-shell` hooks that may deny
//! 6. once more whether the task was cancelled, since counting and hooks take their time
//!
//! Environment and start are the runner's, which looks at its own copy of the list once more.

use ipc::edge::host_broker::{Artifact, Event, HookEvent, WorkdirSpent};
use serde_json::Value;

use crate::policy::{Ask, Denied};
use crate::read_only::Protected;
use crate::session::Session;

/// A program that is about to start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// As asked for.
    pub(crate) program: &'a str,
    /// Its arguments, without its name.
    #[allow(dead_code, reason = "what `read_only` and the hooks judge")]
    pub(crate) args: &'a [String],
    /// The task it is for.
    pub(crate) task_id: Option<&'a str>,
    /// The turn it is for.
    #[allow(dead_code, reason = "what a hook is told")]
    pub(crate) turn: u32,
}

/// Why a program does not start, or a function of `murmur:process` does nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// In the words of `murmur:process` (seed: `refusal`).
    pub(crate) rule: &'static str,
    /// A sentence.
    pub(crate) reason: String,
}

impl Refusal {
    pub(crate) fn new(rule: &'static str, reason: impl Into<String>) -> Self {
        Refusal { rule, reason: reason.into() }
    }
}

/// Lets a program start, or says why not. What a later step writes into the trace about its refusal, it has written when this
/// returns.
///
/// # Errors
/// [`Refusal`] of the first step that refuses.
pub(crate) async fn pass(session: &Session, wanted: &Wanted<'_>) -> Result<(), Refusal> {
    let binary = binary(session, wanted.program)?;
    not_canceled(session, wanted)?;
    within_budget(session).await?;
    let Wanted { program, args, turn, .. } = *wanted;
    if let Some(found) = session.read_only.program(&session.caller.workdir, program, args) {
        return Err(protected(session, turn, true, binary, found).await);
    }
    decided(session, turn, binary, &Ask::Program { binary, program, arguments: args }).await?;
    not_canceled(session, wanted)
}

/// Lets a tool that is no program be called, or says why not: the last two steps above, with the tool's input and the
/// `on-tool-call` hooks. `schema` is that of a component tool, whose input may name what it writes.
///
/// # Errors
/// [`Refusal`] of the first step that refuses.
pub(crate) async fn pass_tool(
    session: &Session,
    turn: u32,
    name: &str,
    input: &Value,
    component: Option<&Artifact>,
) -> Result<(), Refusal> {
    if let Some(component) = component
        && let Some(found) =
            session.read_only.tool(&session.caller.workdir, component.input_schema.as_deref(), input)
    {
        return Err(protected(session, turn, false, name, found).await);
    }
    decided(session, turn, name, &Ask::Tool { name, input: &input.to_string() }).await
}

/// The refusal of a write to a protected path, on record.
async fn protected(session: &Session, turn: u32, program: bool, target: &str, found: Protected) -> Refusal {
    let reason = found.reason();
    let Protected { path, rule, signal, .. } = found;
    let (target, told) = (target.to_owned(), reason.clone());
    record(session, Event::ProtectedPathDenied { turn, program, target, path, rule, signal, reason: told })
        .await;
    Refusal::new(READ_ONLY, reason)
}

/// Asks the hooks; a refusal is on record.
async fn decided(session: &Session, turn: u32, target: &str, ask: &Ask<'_>) -> Result<(), Refusal> {
    let Err(denied) = session.hooks.decide(turn, ask).await else { return Ok(()) };
    let words = denied.words();
    let Denied { hook: hook_name, reason } = denied;
    let event = ask.event();
    record(session, Event::CallDenied { turn, event, hook_name, target: target.to_owned(), reason }).await;
    let rule = match event {
        HookEvent::OnShell => ON_SHELL,
        HookEvent::OnToolCall => ON_TOOL_CALL,
    };
    Err(Refusal::new(rule, words))
}

/// A refusal that cannot be recorded still refuses; a broker that is gone ends the session.
async fn record(session: &Session, event: Event) {
    let _ = session.broker.event(event).await;
}

/// Rules whose refusals have a line of their own instead of that of the call.
pub(crate) const READ_ONLY: &str = "capabilities.filesystem.read_only";
/// The same; as `murmur:process` spells it.
pub(crate) const ON_SHELL: &str = "on-shell";
/// The same, for tools that are no programs.
pub(crate) const ON_TOOL_CALL: &str = "on-tool-call";

impl Refusal {
    /// Whether the gate has written this refusal's line.
    pub(crate) fn is_recorded(&self) -> bool {
        [READ_ONLY, ON_SHELL, ON_TOOL_CALL].contains(&self.rule)
    }
}

/// The absolute path of an allowed program.
///
/// # Errors
/// [`Refusal`] by `capabilities.shell.allow`.
pub(crate) fn binary<'s>(session: &'s Session, program: &str) -> Result<&'s str, Refusal> {
    let found = session.agent.shell.iter().find(|(name, _)| name == program);
    found.map(|(_, path)| path.as_str()).ok_or_else(|| not_allowed(program))
}

/// The refusal of a program that is not on the list.
pub(crate) fn not_allowed(program: &str) -> Refusal {
    let program = crate::text::clip(program, 200);
    Refusal::new("capabilities.shell.allow", format!("'{program}' is not in capabilities.shell.allow"))
}

/// A session that cannot count what it keeps starts nothing.
async fn within_budget(session: &Session) -> Result<(), Refusal> {
    match session.budget.count().await {
        Ok(None) => Ok(()),
        Ok(Some(spent)) => {
            // The running task and the session end by it.
            session.changed();
            Err(session.budget.refusal(spent))
        }
        Err(_) => Err(session.budget.refusal(WorkdirSpent::Unmeasurable)),
    }
}

fn not_canceled(session: &Session, wanted: &Wanted<'_>) -> Result<(), Refusal> {
    match wanted.task_id {
        Some(id) if session.is_canceled(id) => {
            Err(Refusal::new("session-ended", "the task was cancelled, or the session is ending"))
        }
        _ => Ok(()),
    }
}
