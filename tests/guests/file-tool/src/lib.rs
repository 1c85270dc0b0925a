//! A tool that reads or writes one file below its preopened directory `.`, or prints.
//!
//! Input `{"read": PATH}`, `{"write": PATH, "text": TEXT}` or `{"print": TEXT, "times": N}`, where
//! `"stream": "stderr"` prints there and not to stdout. Answer: `{"text": …}`, `{"written": BYTES}` or
//! `{"printed": BYTES}` with status `passed`; `{"error": WHY}` with status `failed` if the host's
//! filesystem or stream refused, where WHY is WASI's error code in its own words (`no-entry`,
//! `not-permitted`, …); with status `error` if the input is none of them.

wit_bindgen::generate!({
    path: "../../../wit",
    world: "murmur:runtime-guest/tool",
    generate_all,
});

use exports::murmur::tool::run::{Guest, Status, ToolInput, ToolResult};
use serde_json::{Value, json};
use wasip2::cli::{stderr::get_stderr, stdout::get_stdout};
use wasip2::filesystem::preopens::get_directories;
use wasip2::filesystem::types::{Descriptor, DescriptorFlags, ErrorCode, OpenFlags, PathFlags};
use wasip2::io::streams::{OutputStream, StreamError};

struct FileTool;

impl Guest for FileTool {
    fn run(input: ToolInput) -> ToolResult {
        let (status, data) = match act(&input.data.unwrap_or_default()) {
            Ok(answer) => (Status::Passed, answer),
            Err((status, why)) => (status, json!({"error": why})),
        };
        ToolResult {
            status,
            summary: None,
            data: Some(data.to_string()),
            data_path: None,
            truncated: false,
            metadata: Vec::new(),
        }
    }
}

fn act(input: &str) -> Result<Value, (Status, String)> {
    let unfit = |why: &str| (Status::Error, why.to_owned());
    let refused = |code: ErrorCode| (Status::Failed, code.name().to_owned());
    let input: Value =
        serde_json::from_str(input).map_err(|e| unfit(&format!("the input is not JSON: {e}")))?;
    if let Some(text) = input["print"].as_str() {
        let stream = if input["stream"] == "stderr" { get_stderr() } else { get_stdout() };
        let printed = print(&stream, text.as_bytes(), input["times"].as_u64().unwrap_or(1))
            .map_err(|error| (Status::Failed, error.to_string()))?;
        return Ok(json!({"printed": printed}));
    }
    let directory = get_directories()
        .into_iter()
        .find_map(|(directory, name)| (name == ".").then_some(directory))
        .ok_or_else(|| unfit("there is no preopened directory `.`"))?;
    match (input["read"].as_str(), input["write"].as_str(), input["text"].as_str()) {
        (Some(path), None, _) => {
            let bytes = read(&directory, path).map_err(refused)?;
            Ok(json!({"text": String::from_utf8_lossy(&bytes)}))
        }
        (None, Some(path), Some(text)) => {
            write(&directory, path, text.as_bytes()).map_err(refused)?;
            Ok(json!({"written": text.len()}))
        }
        _ => Err(unfit("the input is none of {\"read\"}, {\"write\", \"text\"} and {\"print\"}")),
    }
}

fn read(directory: &Descriptor, path: &str) -> Result<Vec<u8>, ErrorCode> {
    let file =
        directory.open_at(PathFlags::SYMLINK_FOLLOW, path, OpenFlags::empty(), DescriptorFlags::READ)?;
    let mut bytes = Vec::new();
    loop {
        let (chunk, end) = file.read(64 * 1024, bytes.len() as u64)?;
        if end || chunk.is_empty() {
            bytes.extend(chunk);
            return Ok(bytes);
        }
        bytes.extend(chunk);
    }
}

fn write(directory: &Descriptor, path: &str, bytes: &[u8]) -> Result<(), ErrorCode> {
    let how = OpenFlags::CREATE | OpenFlags::TRUNCATE;
    let file = directory.open_at(PathFlags::SYMLINK_FOLLOW, path, how, DescriptorFlags::WRITE)?;
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        let piece = rest.get(..64 * 1024).unwrap_or(rest);
        done += file.write(piece, done as u64)? as usize;
    }
    Ok(())
}

fn print(stream: &OutputStream, text: &[u8], times: u64) -> Result<u64, StreamError> {
    let mut printed = 0;
    for _ in 0..times {
        // The most that one call takes.
        for piece in text.chunks(4096) {
            stream.blocking_write_and_flush(piece)?;
            printed += piece.len() as u64;
        }
    }
    Ok(printed)
}

export!(FileTool);
