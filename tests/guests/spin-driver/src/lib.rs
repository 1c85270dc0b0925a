//! A driver that misbehaves on request. The first word of the task says how:
//!
//! | task | what it does |
//! | --- | --- |
//! | `spin` | never returns |
//! | `hoard` | takes memory until there is none left, then traps |
//! | `trap` | traps at once |
//! | `garble` | answers `passed` with text that is not JSON |
//! | `nothing` | answers `passed` with no data at all |
//! | `fail` | answers with stop reason `error` |
//! | `refuse` | answers with status `failed` |
//! | `stop REASON TEXT` | answers TEXT with any stop reason; `stop tool_call` holds no tool call |
//! | `tool NAME JSON` | asks for the tool once, then ends the turn with its result as it came |
//! | `again NAME JSON` | asks for the tool in every turn and never ends |
//! | `show` | ends the turn with the request it was given |
//! | anything else | ends the turn with the task's text |

wit_bindgen::generate!({
    path: "../../../wit",
    world: "murmur:runtime-guest/driver",
    generate_all,
});

use exports::murmur::tool::run::{Guest, Status, ToolInput, ToolResult};
use guest_kit::{Request, end_turn, stop, tool_call, word};
use serde_json::json;

struct SpinDriver;

impl Guest for SpinDriver {
    fn run(input: ToolInput) -> ToolResult {
        let data = input.data.unwrap_or_default();
        let request = Request::read(&data);
        let (verb, rest) = word(&request.task);
        let (status, data) = match verb {
            "spin" => spin(),
            "hoard" => hoard(),
            "trap" => trap(),
            "garble" => (Status::Passed, Some(r#"{"stop_reason": "end_turn", "content": ["#.to_owned())),
            "nothing" => (Status::Passed, None),
            "fail" => {
                let response = json!({"stop_reason": "error", "error": "asked to fail", "content": []});
                (Status::Passed, Some(response.to_string()))
            }
            "refuse" => (Status::Failed, Some(json!({"error": "asked to refuse"}).to_string())),
            "stop" => {
                let (reason, text) = word(rest);
                (Status::Passed, Some(stop(reason, text)))
            }
            "tool" | "again" => (Status::Passed, Some(ask(&request, verb, rest))),
            "show" => (Status::Passed, Some(end_turn(&data))),
            _ => (Status::Passed, Some(end_turn(&request.task))),
        };
        ToolResult { status, summary: None, data, data_path: None, truncated: false, metadata: Vec::new() }
    }
}

fn spin() -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// Allocates and touches a MiB at a time; the allocator traps when it gets no more.
fn hoard() -> ! {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    loop {
        kept.push(core::hint::black_box(vec![0xa5; 1 << 20]));
    }
}

fn trap() -> ! {
    #[cfg(target_arch = "wasm32")]
    core::arch::wasm32::unreachable();
    #[cfg(not(target_arch = "wasm32"))]
    std::process::abort();
}

fn ask(request: &Request, verb: &str, rest: &str) -> String {
    match request.results.last() {
        Some(result) if verb == "tool" => end_turn(result),
        _ => {
            let (name, input) = word(rest);
            match serde_json::from_str(if input.is_empty() { "{}" } else { input }) {
                Ok(input) => tool_call(&format!("call-{}", request.results.len()), name, &input),
                Err(error) => end_turn(&format!("the input for {name} is not JSON: {error}")),
            }
        }
    }
}

export!(SpinDriver);
