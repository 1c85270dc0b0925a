//! How a session runs and what it shows: `lifecycle`, `exports`, `trace` and `network`.

use std::time::Duration;

use super::block::{Context, Map};
use super::capabilities::required_flag;
use super::error::ManifestError;
use super::model::{AfterTask, Capture, ExportFiles, ExportPeerFiles, Lifecycle, TaskAcceptance};
use super::value::{ByteSize, ExportRoot, duration};

/// Longest handle lifetime of a capsule that waits for tasks (seed: The minting key).
const SLEEP_MAX_TTL: Duration = Duration::from_secs(15 * 60);

/// Longest handle lifetime unless it is declared.
const DEFAULT_MAX_TTL: Duration = Duration::from_secs(60 * 60);

/// The words of `task_acceptance`.
pub(super) const TASK_ACCEPTANCE: &[(&str, TaskAcceptance)] =
    &[("none", TaskAcceptance::None), ("single", TaskAcceptance::Single), ("queue", TaskAcceptance::Queue)];

/// The words of `after_task`.
pub(super) const AFTER_TASK: &[(&str, AfterTask)] = &[("exit", AfterTask::Exit), ("sleep", AfterTask::Sleep)];

/// Reads `lifecycle` and applies the launch overrides.
pub(super) fn lifecycle(ctx: &Context, top: &Map<'_>) -> Result<Lifecycle, ManifestError> {
    let block = top.map("lifecycle")?;
    let get = |name: &str| block.as_ref().and_then(|block| block.get(name));
    let declared = get("task_acceptance").map(|field| field.word(TASK_ACCEPTANCE)).transpose()?;
    let task_acceptance = ctx.options.task_acceptance.or(declared).unwrap_or(TaskAcceptance::Single);
    let declared = get("after_task").map(|field| field.word(AFTER_TASK)).transpose()?;
    let after_task = ctx.options.after_task.or(declared).unwrap_or(AfterTask::Exit);
    let depth = get("queue_depth");
    let queue_depth = depth.as_ref().map_or(Ok(1), |field| field.integer32(0))?;
    if let Some(field) = depth
        && queue_depth == 0
        && task_acceptance == TaskAcceptance::Queue
    {
        return Err(field.error("must be greater than zero under task_acceptance: queue"));
    }
    for name in ["input_timeout_secs", "shell_grace_secs", "max_task_reopens", "delegation_deadline_secs"] {
        get(name).map(|field| field.integer(0)).transpose()?;
    }
    Ok(Lifecycle { task_acceptance, after_task, queue_depth })
}

/// Reads `exports`: `files` and `peer_files`, of which neither says anything about the other.
pub(super) fn exports(
    top: &Map<'_>,
    after_task: AfterTask,
) -> Result<(Option<ExportFiles>, Option<ExportPeerFiles>), ManifestError> {
    let Some(block) = top.map("exports")? else { return Ok((None, None)) };
    let files = block.map("files")?.as_ref().map(files).transpose()?;
    let peer_files = block.map("peer_files")?.map(|block| peer_files(&block, after_task)).transpose()?;
    if let Some(peer_tasks) = block.map("peer_tasks")? {
        required_flag(&peer_tasks, "accept")?;
    }
    Ok((files, peer_files))
}

fn files(block: &Map<'_>) -> Result<ExportFiles, ManifestError> {
    let root = ExportRoot::read(&block.require("root")?)?;
    let mode = block.require("mode")?;
    if mode.text()? != "read-only" {
        return Err(mode.error("must be read-only").hint("an export cannot be written through"));
    }
    Ok(ExportFiles { root, max_bytes: max_bytes(block)? })
}

fn max_bytes(block: &Map<'_>) -> Result<ByteSize, ManifestError> {
    block.get("max_bytes").map_or(Ok(ByteSize::EXPORT_DEFAULT), |field| ByteSize::read(&field))
}

fn peer_files(block: &Map<'_>, after_task: AfterTask) -> Result<ExportPeerFiles, ManifestError> {
    let root = ExportRoot::read(&block.require("root")?)?;
    let max_bytes = max_bytes(block)?;
    let field = block.get("max_ttl");
    let max_ttl = field.as_ref().map(duration).transpose()?;
    if after_task == AfterTask::Sleep && max_ttl.is_none_or(|ttl| ttl > SLEEP_MAX_TTL) {
        let reason = match max_ttl {
            None => "is required under after_task: sleep",
            Some(_) => "is longer than 15m, the most that after_task: sleep allows",
        };
        let line = field.map_or(block.line, |field| field.node.line);
        return Err(ManifestError::new("E-CAP-008", block.path("max_ttl"), reason)
            .line(line)
            .hint("write max_ttl: 15m or less, or after_task: exit"));
    }
    Ok(ExportPeerFiles { root, max_ttl: max_ttl.unwrap_or(DEFAULT_MAX_TTL), max_bytes })
}

/// Reads `trace.capture` and its retired alias.
pub(super) fn capture(ctx: &mut Context, top: &Map<'_>) -> Result<Capture, ManifestError> {
    let Some(block) = top.map("trace")? else { return Ok(Capture::Meta) };
    let capture = block
        .get("capture")
        .map(|field| {
            field.word(&[("none", Capture::None), ("meta", Capture::Meta), ("content", Capture::Content)])
        })
        .transpose()?;
    let Some(alias) = block.get("include_tool_output") else { return Ok(capture.unwrap_or(Capture::Meta)) };
    if capture.is_some() {
        return Err(alias.error("contradicts trace.capture, which replaced it").hint("remove it"));
    }
    let capture = if alias.flag()? { Capture::Content } else { Capture::Meta };
    ctx.warn(None, format!("{}: replaced by trace.capture", alias.path));
    Ok(capture)
}

/// Checks `network`, of which nothing is built yet.
pub(super) fn network(top: &Map<'_>) -> Result<(), ManifestError> {
    if let Some(block) = top.map("network")?
        && let Some(port) = block.get("internal_port")
        && port.integer(0)? > 65_535
    {
        return Err(port.error("is not a port number"));
    }
    Ok(())
}
