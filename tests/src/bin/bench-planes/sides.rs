//! The servers that are compared, and starting them: a session, nginx, the plain loop.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use system_tests::broker::{Launch, Session};
use system_tests::capsule::Capsule;
use system_tests::http;
use system_tests::process::{self, Signal};
use system_tests::temporary::Temporary;

use system_tests::bench::report::Fault;

/// How long nginx may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where files are served, on every side.
pub(crate) const FILES: &str = "/resources/files/";

/// Something that serves the files.
pub(crate) struct Side {
    /// What it is called in the table.
    pub(crate) name: &'static str,
    url: String,
    held: Held,
}

enum Held {
    Session(Box<Session>),
    Child { child: Child, _folder: Option<Temporary> },
}

impl Side {
    /// The capsule's own session.
    pub(crate) fn ours(capsule: &Capsule) -> Self {
        Self::session(Launch::of(capsule).start())
    }

    /// A session that was started elsewhere.
    pub(crate) fn session(session: Session) -> Self {
        Self { name: "ours", url: session.url().to_owned(), held: Held::Session(Box::new(session)) }
    }

    /// nginx with one worker per core, `sendfile`, no log, and `Connection: close` in every answer.
    pub(crate) fn nginx(files: &Path) -> Result<Self, Fault> {
        let nginx = program("nginx", "nginx-light")?;
        let folder = Temporary::new();
        // Given back and taken again: nginx cannot say which free port it took.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let workers = std::thread::available_parallelism()?;
        let place = folder.path().display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("    {kind}_temp_path {place}/{kind};\n"))
            .concat();
        let configuration = format!(
            "daemon off;\nuser root;\nworker_processes {workers};\npid {place}/pid;\nerror_log {place}/error.log;\n\
             events {{ worker_connections 1024; }}\nhttp {{\n    access_log off;\n    sendfile on;\n    keepalive_timeout 0;\n\
             \x20   default_type application/octet-stream;\n{temporary}    server {{\n        listen 127.0.0.1:{port};\n        \
             location {FILES} {{ alias {}/; }}\n    }}\n}}\n",
            files.display()
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, configuration)?;
        let log = folder.path().join("error.log");
        let mut command = Command::new(nginx);
        command.arg("-p").arg(folder.path()).arg("-c").arg(&file).arg("-e").arg(&log);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let held = Held::Child { child, _folder: Some(folder) };
        let mut side = Self { name: "nginx", url: format!("http://127.0.0.1:{port}"), held };
        let address = (Ipv4Addr::LOCALHOST, port);
        process::until("nginx answers", PATIENCE, || match side.ended() {
            Some(status) => Some(Err(status)),
            None => std::net::TcpStream::connect(address).ok().map(|_| Ok(())),
        })
        .map_err(|status| {
            Fault::Failed(format!("nginx: {status}: {}", fs::read_to_string(&log).unwrap_or_default()))
        })?;
        Ok(side)
    }

    /// The plain open-read-hash-serve loop, built with this program.
    pub(crate) fn plain(files: &Path) -> Result<Self, Fault> {
        let program = std::env::current_exe()?.with_file_name("hash-loop");
        let mut command = Command::new(&program);
        let child = command.arg(files).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let child = child.map_err(|error| Fault::Failed(format!("{}: {error}", program.display())))?;
        let mut side = Self { name: "loop", url: String::new(), held: Held::Child { child, _folder: None } };
        if let Held::Child { child, .. } = &mut side.held
            && let Some(stdout) = child.stdout.take()
        {
            BufReader::new(stdout).read_line(&mut side.url)?;
        }
        side.url = side.url.trim().to_owned();
        if side.url.is_empty() { Err(Fault::Failed("hash-loop ended".to_owned())) } else { Ok(side) }
    }

    /// All three, over the files below the capsule's `out/`.
    pub(crate) fn all(capsule: &Capsule) -> Result<[Self; 3], Fault> {
        let files = capsule.work().join("out");
        Ok([Self::ours(capsule), Self::nginx(&files)?, Self::plain(&files)?])
    }

    /// Where it serves a file.
    pub(crate) fn address(&self, file: &str) -> String {
        format!("{}{FILES}{file}", self.url)
    }

    /// `http://host:port`.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Every process of it.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let root = match &self.held {
            Held::Session(session) => session.pid(),
            Held::Child { child, .. } => i32::try_from(child.id()).unwrap_or_else(|_| panic!("a process id")),
        };
        let below = process::descendants(root).into_iter().map(|process| process.pid);
        std::iter::once(root).chain(below).collect()
    }

    /// That it serves exactly these bytes and closes.
    pub(crate) fn check(&self, file: &str, content: &[u8]) -> Result<(), Fault> {
        let answer = http::try_request(&self.url, "GET", &format!("{FILES}{file}"))?;
        let closes = answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        if answer.status != 200 || answer.body != content || !closes {
            let text = format!("{} does not serve {file}: {} {:?}", self.name, answer.status, answer.headers);
            return Err(Fault::Failed(text));
        }
        Ok(())
    }

    /// Ends it, and for a session checks that nothing is left of it.
    pub(crate) fn stop(mut self) {
        if let Held::Session(session) = &mut self.held {
            session.stop();
        }
    }

    fn ended(&mut self) -> Option<std::process::ExitStatus> {
        match &mut self.held {
            Held::Session(_) => None,
            Held::Child { child, .. } => child.try_wait().ok().flatten(),
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if self.ended().is_none()
            && let Held::Child { child, .. } = &mut self.held
        {
            // SIGTERM first: nginx's workers outlive a master that was killed.
            let pid = i32::try_from(child.id()).unwrap_or_default();
            process::signal(pid, Signal::TERM);
            if !process::wait_end_of(pid, PATIENCE) {
                let _ = child.kill();
            }
            let _ = child.wait();
        }
    }
}

/// A program of the host's.
///
/// # Errors
/// `NotRun` with the package that has it.
pub(crate) fn program(name: &str, package: &str) -> Result<PathBuf, Fault> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file()).ok_or_else(|| {
        Fault::NotRun(format!("{name} is not installed; on Debian: apt-get install {package}"))
    })
}

/// A capsule that serves up to 16 MiB per file.
pub(crate) fn capsule() -> Capsule {
    Capsule::reporter().with("root: out/", "root: out/\n    max_bytes: 16777216")
}

/// A file's content: not the same in any two of its blocks.
pub(crate) fn content(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}
