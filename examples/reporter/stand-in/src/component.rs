//! The component's surface: `murmur:tool/run` in, `murmur:stream/events` out.

wit_bindgen::generate!({
    path: "../../../wit",
    world: "murmur:runtime-guest/driver",
    generate_all,
});

use exports::murmur::tool::run::{Guest, Status, ToolInput, ToolResult};
use murmur::stream::events;

use crate::turn::{self, Decision};

struct StandIn;

impl Guest for StandIn {
    fn run(input: ToolInput) -> ToolResult {
        let request = input.data.unwrap_or_default();
        match turn::decide(&request) {
            Ok(decision) => {
                announce(&decision);
                answer(Status::Passed, decision.response(request.len()))
            }
            Err(reason) => answer(Status::Error, turn::failure(&reason)),
        }
    }
}

/// Tells a watcher what this turn is about to return.
fn announce(decision: &Decision) {
    match decision {
        Decision::Call { id, tool, input, .. } => {
            events::tool_call_started(id, tool);
            let bytes = input.to_string().len();
            events::tool_call_input_bytes(id, u64::try_from(bytes).unwrap_or(u64::MAX));
        }
        Decision::Say(text) => events::emit_chunk(text),
        Decision::GiveUp(_) => {}
    }
}

fn answer(status: Status, data: String) -> ToolResult {
    ToolResult {
        status,
        summary: None,
        data: Some(data),
        data_path: None,
        truncated: false,
        metadata: Vec::new(),
    }
}

export!(StandIn);
