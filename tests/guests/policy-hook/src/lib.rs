//! A policy hook that does what the call it is asked about says: the word after `hook:` in a program's arguments or in a tool's
//! input. Without one it lets the call go on.
//!
//! | word | answer |
//! |---|---|
//! | `deny` | `deny`, and the event as it came |
//! | `count` | `deny`, and how often it was asked before |
//! | `blank` | `deny` without a reason |
//! | `other` | another arm |
//! | `error` | an error |
//! | `trap` | none: it traps |
//! | `spin` | none: it never ends |
//! | `memory` | none: it takes more memory than there is |

wit_bindgen::generate!({
    path: "../../../wit",
    world: "murmur:runtime-guest/hook",
    generate_all,
});

use std::sync::atomic::{AtomicU64, Ordering};

use exports::murmur::hook::lifecycle::{
    CompactionEvent, Guest, HookOutput, InferenceEvent, SessionContext, SessionEndEvent, ShellEvent, StageEvent,
    TaskEndEvent, TaskStartEvent, ToolEvent,
};

struct PolicyHook;

static ASKED: AtomicU64 = AtomicU64::new(0);

fn decide(text: &str, event: &str) -> Result<HookOutput, String> {
    let before = ASKED.fetch_add(1, Ordering::Relaxed);
    let Some((_, rest)) = text.split_once("hook:") else { return Ok(HookOutput::None) };
    let word: String = rest.chars().take_while(char::is_ascii_alphabetic).collect();
    match word.as_str() {
        "deny" => Ok(HookOutput::Deny(format!("seen {event}"))),
        "count" => Ok(HookOutput::Deny(format!("asked {before} times before"))),
        "blank" => Ok(HookOutput::Deny(" ".into())),
        "other" => Ok(HookOutput::Artifact("{}".into())),
        "error" => Err("could not decide".into()),
        "trap" => panic!("as told"),
        "spin" => loop {
            std::hint::spin_loop();
        },
        "memory" => {
            let mut held: Vec<Vec<u8>> = Vec::new();
            loop {
                held.push(vec![1; 1 << 20]);
            }
        }
        _ => Ok(HookOutput::None),
    }
}

impl Guest for PolicyHook {
    fn on_shell(event: ShellEvent) -> Result<HookOutput, String> {
        let shown = format!(
            "{} {:?} script {:?} command {:?} turn {} outcome {}",
            event.binary,
            event.argv,
            event.script,
            event.command,
            event.turn,
            event.outcome.is_some()
        );
        decide(&event.argv.join("\n"), &shown)
    }

    fn on_tool_call(event: ToolEvent) -> Result<HookOutput, String> {
        let shown = format!(
            "{} {} bytes {} turn {} outcome {}",
            event.tool_name,
            event.input,
            event.input_bytes,
            event.turn,
            event.outcome.is_some()
        );
        decide(&event.input, &shown)
    }

    fn on_stage(_: StageEvent) -> Result<HookOutput, String> {
        Ok(HookOutput::None)
    }

    fn on_session_start(_: SessionContext) -> Result<HookOutput, String> {
        Ok(HookOutput::None)
    }

    fn on_task_start(_: TaskStartEvent) -> Result<HookOutput, String> {
        Ok(HookOutput::None)
    }

    fn on_inference(_: InferenceEvent) -> Result<HookOutput, String> {
        Ok(HookOutput::None)
    }

    fn on_compaction(_: CompactionEvent) -> Result<HookOutput, String> {
        Ok(HookOutput::None)
    }

    fn on_task_end(_: TaskEndEvent) -> Result<HookOutput, String> {
        Ok(HookOutput::None)
    }

    fn on_session_end(_: SessionEndEvent) -> Result<HookOutput, String> {
        Ok(HookOutput::None)
    }
}

export!(PolicyHook);
