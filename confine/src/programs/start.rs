//! The start of one program: everything is prepared before the fork, the child makes raw system calls only.

use std::ffi::{CString, OsStr, OsString, c_char};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};

use crate::sys;

/// Resource limits of one program; `None` leaves the runner's.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// `RLIMIT_NOFILE`, hard and soft.
    pub open_files: Option<u64>,
    /// `RLIMIT_FSIZE`, bytes.
    pub file_size: Option<u64>,
    /// `RLIMIT_CPU`, seconds; the hard limit is one more.
    pub cpu_seconds: Option<u64>,
    /// `RLIMIT_AS`, bytes.
    pub memory: Option<u64>,
    /// `RLIMIT_NPROC`, tasks of the uid.
    pub processes: Option<u64>,
}

/// A program to start.
#[derive(Debug)]
pub struct Start<'a> {
    /// Absolute path of the program, as found at launch.
    pub program: &'a Path,
    /// The argument vector, `argv[0]` included.
    pub arguments: &'a [OsString],
    /// The whole environment.
    pub environment: &'a [(OsString, OsString)],
    /// Working directory.
    pub directory: &'a Path,
    /// Descriptor 0; `None` is `/dev/null`.
    pub stdin: Option<BorrowedFd<'a>>,
    /// Descriptor 1.
    pub stdout: BorrowedFd<'a>,
    /// Descriptor 2.
    pub stderr: BorrowedFd<'a>,
    /// `cgroup.procs` of the leaf the program joins before it does anything else; `None` stays where the runner is.
    pub leaf: Option<BorrowedFd<'a>>,
    /// Its limits, applied last.
    pub limits: Limits,
}

/// Why a program did not start. Nothing is left of it; the child was reaped.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {cause}")]
pub struct StartError {
    /// What was tried: `arguments` (a NUL byte, `=` in a variable's name), `fork`, `group`, `leaf`, `descriptors`,
    /// `directory`, `filter`, `limits` or `exec`.
    pub step: &'static str,
    /// What the kernel said.
    #[source]
    pub cause: std::io::Error,
}

/// Starts a program as leader of a new process group, with default signal dispositions, descriptors 0, 1 and 2 and nothing
/// else open, and returns its pid in the caller's namespace once `execve` succeeded. The caller reaps it
/// (`waitpid(-1)` as pid 1); pid and process group are the same number.
///
/// # Errors
/// [`StartError`].
pub fn start(start: &Start<'_>) -> Result<i32, StartError> {
    let failed = |step| move |cause| StartError { step, cause };
    let program = text(start.program.as_os_str())?;
    let directory = text(start.directory.as_os_str())?;
    let arguments = start.arguments.iter().map(|word| text(word)).collect::<Result<Vec<_>, _>>()?;
    let environment = start.environment.iter().map(variable).collect::<Result<Vec<_>, _>>()?;
    let limits = start.limits.list();
    let filter = filter().map_err(failed("filter"))?;
    let null = rustix::fs::open(c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| StartError { step: "descriptors", cause: errno.into() })?;
    let (read, write) = io::pipe().map_err(failed("descriptors"))?;

    let pid = sys::program::start(&sys::program::Program {
        path: &program,
        arguments: &pointers(&arguments),
        environment: &pointers(&environment),
        directory: &directory,
        standard: [start.stdin.unwrap_or(null.as_fd()), start.stdout, start.stderr],
        leaf: start.leaf,
        filter,
        limits: &limits,
        failure: write.as_fd(),
    })
    .map_err(failed("fork"))?;
    drop(write);
    outcome(read, pid)
}

/// How long a child may take to its exec. It has its programs' id already, and one of them may stop it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reads what the child reports: nothing if exec succeeded, for that closed its end.
fn outcome(mut failure: io::PipeReader, pid: i32) -> Result<i32, StartError> {
    let mut message = Vec::new();
    let heard = readable(&failure, PATIENCE).and_then(|()| failure.read_to_end(&mut message));
    let heard = heard.map_err(|cause| StartError { step: "fork", cause });
    if matches!(&heard, Ok(0)) {
        return Ok(pid);
    }
    // It failed, or it is held before its exec; SIGKILL ends one that was stopped, too.
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    }
    heard?;
    let (step, errno) = message.split_first().unwrap_or((&0, &[]));
    let step = sys::program::STEPS.get(usize::from(*step)).copied().unwrap_or("exec");
    let errno = errno.try_into().map_or(libc::EIO, i32::from_le_bytes);
    Err(StartError { step, cause: io::Error::from_raw_os_error(errno) })
}

/// Waits until a pipe can be read or its other end is gone.
fn readable(pipe: &io::PipeReader, patience: Duration) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match rustix::event::poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout)) {
            Ok(0) if left.is_zero() => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it was held before it could begin"));
            }
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The program's own small filter, built once.
fn filter() -> io::Result<&'static [seccompiler::sock_filter]> {
    static FILTER: OnceLock<seccompiler::BpfProgram> = OnceLock::new();
    if let Some(filter) = FILTER.get() {
        return Ok(filter);
    }
    let built = crate::policy::inherited::program().map_err(io::Error::other)?;
    Ok(FILTER.get_or_init(|| built))
}

fn refused(why: &'static str) -> StartError {
    StartError { step: "arguments", cause: io::Error::new(io::ErrorKind::InvalidInput, why) }
}

fn text(text: &OsStr) -> Result<CString, StartError> {
    CString::new(text.as_bytes()).map_err(|_| refused("a NUL byte"))
}

fn variable((name, value): &(OsString, OsString)) -> Result<CString, StartError> {
    if name.is_empty() || name.as_bytes().contains(&b'=') {
        return Err(refused("a variable without a plain name"));
    }
    let mut pair = name.clone();
    pair.push("=");
    pair.push(value);
    text(&pair)
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}

impl Limits {
    /// Resource, soft and hard limit.
    fn list(&self) -> Vec<(u32, u64, u64)> {
        let mut list = Vec::new();
        let mut add = |resource, soft: Option<u64>, above: u64| {
            if let Some(soft) = soft {
                list.push((resource, soft, soft.saturating_add(above)));
            }
        };
        add(libc::RLIMIT_FSIZE, self.file_size, 0);
        add(libc::RLIMIT_CPU, self.cpu_seconds, 1);
        add(libc::RLIMIT_AS, self.memory, 0);
        add(libc::RLIMIT_NPROC, self.processes, 0);
        add(libc::RLIMIT_NOFILE, self.open_files, 0);
        list
    }
}
