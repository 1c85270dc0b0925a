//! Policy hooks: components of the operator's that are asked before a call, and can only refuse it.
//!
//! A call goes on when every hook bound to its event has answered `none`. Everything else refuses it: a reason, an answer that
//! decides nothing, an error, a trap, a limit. A hook lives as long as the session, so that it can count what it sees; one that
//! trapped or met a limit is over and refuses from then on, so that nobody can make it forget.

use std::rc::Rc;
use std::sync::Arc;

use ipc::edge::host_broker::{Agent, ComponentLimits, HookEvent};
use tokio::sync::{Mutex, mpsc};
use tokio::task::spawn_local;
use wasmtime::component::TypedFunc;
use wasmtime::{Engine, Store};

use crate::driver::{Caller, GRACE};
use crate::http::{EgressLink, Hooks as Outgoing};
use crate::load::LoadedHook;
use crate::load::hook_bindings::exports::murmur::hook::lifecycle::{HookOutput, ShellEvent, ToolEvent};
use crate::process::{self, Access, Place};
use crate::results::SessionDirectory;
use crate::shell::takes_script;
use crate::stdio::{Printed, Sinks};
use crate::store::{self, CallError, CallState};
use crate::text::clip;
use crate::wasi;

/// Characters of a command that an event shows for display.
const SHOWN: usize = 200;
/// Bytes of a reason that are passed on.
const REASON: usize = 2000;

/// What is to be decided.
pub(crate) enum Ask<'a> {
    /// A program is to start: its path, its name, its arguments.
    Program { binary: &'a str, program: &'a str, arguments: &'a [String] },
    /// Any other tool is to be called: its name, its input as JSON text.
    Tool { name: &'a str, input: &'a str },
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Denied {
    /// The hook that refused.
    pub(crate) hook: String,
    /// Its words, or the runtime's where it gave none.
    pub(crate) reason: String,
}

impl Denied {
    /// The refusal as a model reads it.
    pub(crate) fn words(&self) -> String {
        format!(
            "Refused by policy hook '{}': {}. It did not run, and the same call will be refused again.",
            self.hook,
            self.reason.trim_end_matches('.')
        )
    }
}

/// The session's hooks, in the order of their declaration.
#[derive(Default)]
pub(crate) struct Hooks(Vec<Rc<Hook>>);

/// One of them.
struct Hook {
    loaded: LoadedHook,
    house: Rc<House>,
    /// One call after the other.
    life: Mutex<Life>,
}

/// What all of them are called with.
struct House {
    engine: Engine,
    egress: Arc<EgressLink>,
    processes: mpsc::UnboundedSender<process::Ask>,
    limits: ComponentLimits,
    directory: Rc<SessionDirectory>,
}

enum Life {
    /// Not asked yet.
    Unborn,
    Living(Box<Instance>),
    /// A call of it trapped or met a limit, and what it had counted is gone with it.
    Over,
}

/// A live hook.
struct Instance {
    store: Store<CallState>,
    function: Function,
    sinks: Sinks,
}

enum Function {
    Shell(TypedFunc<(ShellEvent,), (Answer,)>),
    Tool(TypedFunc<(ToolEvent,), (Answer,)>),
}

type Answer = Result<HookOutput, String>;

/// A call as a hook reads it.
enum Question {
    Shell(ShellEvent),
    Tool(ToolEvent),
}

impl Ask<'_> {
    pub(crate) fn event(&self) -> HookEvent {
        match self {
            Ask::Program { .. } => HookEvent::OnShell,
            Ask::Tool { .. } => HookEvent::OnToolCall,
        }
    }

    fn question(&self, turn: u32) -> Question {
        match self {
            Ask::Program { binary, program, arguments } => {
                Question::Shell(shell_event(turn, binary, program, arguments))
            }
            Ask::Tool { name, input } => Question::Tool(ToolEvent {
                turn,
                tool_name: (*name).to_owned(),
                input_bytes: input.len() as u64,
                input: (*input).to_owned(),
                outcome: None,
            }),
        }
    }
}

impl Hooks {
    /// Takes the hooks out of what was loaded.
    pub(crate) fn of(caller: &mut Caller, agent: &Agent, directory: &Rc<SessionDirectory>) -> Self {
        let house = Rc::new(House {
            engine: caller.components.engine.clone(),
            egress: Arc::clone(&caller.egress),
            processes: caller.processes.clone(),
            limits: agent.hook_limits,
            directory: Rc::clone(directory),
        });
        let hook =
            |loaded| Rc::new(Hook { loaded, house: Rc::clone(&house), life: Mutex::new(Life::Unborn) });
        Hooks(std::mem::take(&mut caller.components.hooks).into_iter().map(hook).collect())
    }

    /// Asks every hook that is bound to the call's event, in order; the first refusal ends it.
    ///
    /// # Errors
    /// [`Denied`].
    pub(crate) async fn decide(&self, turn: u32, ask: &Ask<'_>) -> Result<(), Denied> {
        for hook in self.0.iter().filter(|hook| hook.loaded.event == ask.event()) {
            let (asked, question) = (Rc::clone(hook), ask.question(turn));
            // Goes on if whoever waits gives up: a hook must not lose what it counted because a call was dropped.
            let answer = spawn_local(async move { asked.ask(question).await }).await;
            let refused = match answer {
                Ok(Ok(answer)) => refusal(answer),
                Ok(Err(reason)) => Some(reason),
                Err(_) => Some("the hook did not decide".to_owned()),
            };
            if let Some(reason) = refused {
                return Err(Denied { hook: hook.loaded.artifact.name.clone(), reason });
            }
        }
        Ok(())
    }
}

impl Hook {
    /// Its answer, or why there is none.
    async fn ask(&self, question: Question) -> Result<Answer, String> {
        let mut life = self.life.lock().await;
        let living = match std::mem::replace(&mut *life, Life::Over) {
            Life::Unborn => None,
            Life::Living(instance) => Some(*instance),
            Life::Over => {
                return Err("the hook failed before and decides nothing in this session any more".into());
            }
        };
        let (answer, instance) = self
            .call(living, question)
            .await
            .map_err(|error| format!("the hook did not decide: {}", clip(&error.to_string(), REASON)))?;
        *life = Life::Living(Box::new(instance));
        Ok(answer)
    }

    async fn call(
        &self,
        living: Option<Instance>,
        question: Question,
    ) -> Result<(Answer, Instance), CallError> {
        let name = &self.loaded.artifact.name;
        let limits = &self.house.limits;
        let late = || CallError::Deadline { artifact: name.clone(), seconds: limits.deadline_seconds };
        let sinks = living.as_ref().map(|instance| instance.sinks.clone()).unwrap_or_default();
        let log = format!("hook-{name}");
        // Dropped last: its log holds what was printed however this ends.
        let printed = Printed::into(&self.house.directory, &log, &sinks);
        let patience = store::allowed(limits) + GRACE;
        let mut instance = match living {
            Some(instance) => instance,
            None => {
                let mut store = self.fresh(&printed);
                match tokio::time::timeout(patience, instantiate(&self.loaded, &mut store)).await {
                    Ok(Ok(function)) => Instance { store, function, sinks },
                    Ok(Err(error)) => return Err(store.data().classify(name, &error)),
                    Err(_elapsed) => return Err(late()),
                }
            }
        };
        store::start_clock(&mut instance.store, limits);
        match tokio::time::timeout(patience, instance.ask(question)).await {
            Ok(Ok(answer)) => Ok((answer, instance)),
            Ok(Err(error)) => Err(instance.store.data().classify(name, &error)),
            Err(_elapsed) => Err(late()),
        }
    }

    /// A hook gets no directory, and of the network what its own entry allows.
    fn fresh(&self, printed: &Printed<'_>) -> Store<CallState> {
        let House { engine, egress, processes, limits, .. } = &*self.house;
        let artifact = &self.loaded.artifact;
        let outgoing = Outgoing::new(Arc::clone(egress), &artifact.name, false);
        let context = wasi::hook_context(artifact, printed);
        // Outside a tool call: `murmur:process` links and refuses.
        let nowhere = Place { task_id: None, turn: None, tool: None };
        store::new(engine, limits, context, outgoing, Access::new(nowhere, processes.clone()), None)
    }
}

/// Why an answer does not let the call go on.
fn refusal(answer: Answer) -> Option<String> {
    let arm = match answer {
        Ok(HookOutput::None) => return None,
        Ok(HookOutput::Deny(reason)) if reason.trim().is_empty() => {
            return Some("the hook gave no reason".into());
        }
        Ok(HookOutput::Deny(reason)) => return Some(clip(&reason, REASON)),
        Err(text) => return Some(format!("the hook failed: {}", clip(&text, REASON))),
        Ok(HookOutput::ReplaceContext(_)) => "replace-context",
        Ok(HookOutput::WriteManifests(_)) => "write-manifests",
        Ok(HookOutput::Artifact(_)) => "artifact",
        Ok(HookOutput::ReopenTask(_)) => "reopen-task",
        Ok(HookOutput::SeedContext(_)) => "seed-context",
    };
    Some(format!("the hook answered `{arm}`, which decides nothing"))
}

async fn instantiate(loaded: &LoadedHook, store: &mut Store<CallState>) -> wasmtime::Result<Function> {
    let instance = loaded.component.instantiate_async(&mut *store).await?;
    let function = instance
        .get_func(&mut *store, loaded.function)
        .ok_or_else(|| wasmtime::format_err!("`{}` is no function", loaded.event.as_str()))?;
    Ok(match loaded.event {
        HookEvent::OnShell => Function::Shell(function.typed(&*store)?),
        HookEvent::OnToolCall => Function::Tool(function.typed(&*store)?),
    })
}

impl Instance {
    async fn ask(&mut self, question: Question) -> wasmtime::Result<Answer> {
        let (answer,) = match (&self.function, question) {
            (Function::Shell(function), Question::Shell(event)) => {
                function.call_async(&mut self.store, (event,)).await?
            }
            (Function::Tool(function), Question::Tool(event)) => {
                function.call_async(&mut self.store, (event,)).await?
            }
            _ => return Err(wasmtime::format_err!("the hook is bound to another event")),
        };
        Ok(answer)
    }
}

fn shell_event(turn: u32, binary: &str, program: &str, arguments: &[String]) -> ShellEvent {
    let script = match arguments {
        [option, script, ..] if option == "-c" && takes_script(program) => Some(script.clone()),
        _ => None,
    };
    let text = script.clone().unwrap_or_else(|| arguments.join(" "));
    ShellEvent {
        turn,
        binary: binary.to_owned(),
        command: text.chars().take(SHOWN).collect(),
        argv: arguments.to_vec(),
        script,
        recipe: None,
        outcome: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clean_none_lets_a_call_go_on() {
        for (answer, words) in [
            (Ok(HookOutput::Deny("not on Sundays".into())), "not on Sundays"),
            (Ok(HookOutput::Deny(" \n".into())), "the hook gave no reason"),
            (Ok(HookOutput::Artifact("{}".into())), "the hook answered `artifact`, which decides nothing"),
            (Ok(HookOutput::SeedContext(vec![])), "the hook answered `seed-context`, which decides nothing"),
            (
                Ok(HookOutput::ReplaceContext(vec![])),
                "the hook answered `replace-context`, which decides nothing",
            ),
            (
                Ok(HookOutput::WriteManifests(vec![])),
                "the hook answered `write-manifests`, which decides nothing",
            ),
            (
                Ok(HookOutput::ReopenTask("x".into())),
                "the hook answered `reopen-task`, which decides nothing",
            ),
            (Err("broken".into()), "the hook failed: broken"),
        ] {
            assert_eq!(refusal(answer).as_deref(), Some(words));
        }
        assert_eq!(refusal(Ok(HookOutput::None)), None);
    }

    #[test]
    fn a_shells_script_is_shown_whole_and_its_display_is_cut() {
        let script = "x".repeat(500);
        let event = shell_event(3, "/usr/bin/bash", "bash", &["-c".into(), script.clone()]);
        assert_eq!(event.argv, ["-c".to_owned(), script.clone()]);
        assert_eq!(event.script, Some(script));
        assert_eq!(event.command.len(), SHOWN);
        let event = shell_event(0, "/usr/bin/git", "git", &["-c".into(), "a=b".into()]);
        assert_eq!((event.script, event.command.as_str()), (None, "-c a=b"));
    }
}
