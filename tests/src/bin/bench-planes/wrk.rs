//! Running wrk and reading what it prints. Every answer says `connection: close`, so each request has its connection.

use std::process::Command;

use crate::sides::program;
use system_tests::bench::report::Fault;

/// What one run of wrk counted.
#[derive(Debug, PartialEq)]
pub(crate) struct Run {
    /// Answers in full.
    pub(crate) requests: u64,
    /// Answers per second.
    pub(crate) rate: f64,
}

/// Drives `url` for some seconds. As many threads as there are cores, but no more than connections.
///
/// # Errors
/// `NotRun` without wrk; `Failed` if wrk counted an error or nothing at all.
pub(crate) fn run(url: &str, headers: &[String], connections: usize, seconds: u64) -> Result<Run, Fault> {
    let wrk = program("wrk", "wrk")?;
    let threads = std::thread::available_parallelism()?.get().min(connections);
    let mut command = Command::new(wrk);
    command.args(["-t", &threads.to_string(), "-c", &connections.to_string(), "-d", &format!("{seconds}s")]);
    for header in headers {
        command.args(["-H", header]);
    }
    let output = command.args(["--", url]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(Fault::Failed(format!("wrk: {}: {text}{error}", output.status)));
    }
    read(&text).map_err(|why| Fault::Failed(format!("wrk at {url}: {why}")))
}

fn read(text: &str) -> Result<Run, String> {
    let (mut requests, mut rate) = (None, None);
    for line in text.lines().map(str::trim) {
        if line.starts_with("Socket errors:") || line.starts_with("Non-2xx or 3xx responses:") {
            return Err(line.to_owned());
        }
        if let Some(value) = line.strip_prefix("Requests/sec:") {
            rate = value.trim().parse().ok();
        } else if let Some((count, _)) = line.split_once(" requests in ") {
            requests = count.parse().ok();
        }
    }
    match (requests, rate) {
        (Some(requests), Some(rate)) if requests > 0 => Ok(Run { requests, rate }),
        (Some(_), Some(_)) => Err("not one answer".to_owned()),
        _ => Err(format!("its output is of another form: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "Running 1s test @ http://127.0.0.1:1/x\n  1 threads and 8 connections\n  Thread Stats   Avg      \
        Stdev     Max   +/- Stdev\n    Latency   311.63us  191.54us  10.51ms   97.62%\n  22936 requests in 1.10s, 97.01MB read\n\
        Requests/sec:  20862.97\nTransfer/sec:     88.24MB\n";

    #[test]
    fn what_wrk_counted_is_read() {
        assert_eq!(read(OUTPUT), Ok(Run { requests: 22936, rate: 20862.97 }));
    }

    #[test]
    fn an_error_that_wrk_counted_is_never_a_figure() {
        for line in
            ["  Socket errors: connect 0, read 1, write 0, timeout 0\n", "  Non-2xx or 3xx responses: 3\n"]
        {
            assert_eq!(
                read(&OUTPUT.replace("Requests/sec", &format!("{line}Requests/sec"))),
                Err(line.trim().to_owned())
            );
        }
        assert!(read(&OUTPUT.replace("22936", "0")).is_err());
        assert!(read("").is_err());
    }
}
