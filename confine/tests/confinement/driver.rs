//! Starts a child, gives it its resources, and collects how it ended.

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use confine::Role;
use confine::spawn::{Child, Exit, Program, spawn};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// The uid and gid of every child.
pub(crate) const UID: u32 = 61_234;

pub(crate) fn pair() -> (OwnedFd, OwnedFd) {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

pub(crate) fn send(to: BorrowedFd<'_>, text: &str, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    // A child that has ended is judged by its status, not by this.
    let _ = rustix::net::sendmsg(to, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL);
}

/// A packet, `None` when the other end is closed.
pub(crate) fn receive(from: BorrowedFd<'_>) -> Option<(String, Vec<OwnedFd>)> {
    let mut buffer = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        match rustix::net::recvmsg(from, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => break message,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    };
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            descriptors.extend(received);
        }
    }
    if message.bytes == 0 {
        return None;
    }
    Some((String::from_utf8_lossy(&buffer[..message.bytes]).into_owned(), descriptors))
}

/// A child that is starting or ready.
pub(crate) struct Started {
    pub(crate) child: Child,
    pub(crate) control: OwnedFd,
    log: std::fs::File,
}

/// How a child ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) exit: Exit,
    pub(crate) log: String,
    /// What its probe said, if it came to that.
    pub(crate) answer: Option<String>,
}

pub(crate) fn program(name: &str) -> Program {
    let own = std::env::current_exe().unwrap();
    let mut program =
        Program::open(own.parent().unwrap(), own.file_name().unwrap().to_str().unwrap()).unwrap();
    program.name = name.to_owned();
    program
}

/// Spawns this binary under a name and waits until it runs.
pub(crate) fn start(name: &str) -> Started {
    let (near, far) = pair();
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let child = spawn(&program(name), None, far.as_fd(), write.as_fd()).unwrap();
    drop((far, write));
    assert_eq!(receive(near.as_fd()).unwrap().0, "hello");
    Started { child, control: near, log: read.into() }
}

/// What a child is given.
#[derive(Default)]
pub(crate) struct Gifts<'a> {
    pub(crate) network: Option<BorrowedFd<'a>>,
    pub(crate) trees: Vec<(&'a str, OwnedFd)>,
    /// The root is a composed one.
    pub(crate) composed: bool,
    pub(crate) read_only: Vec<&'a str>,
}

/// What marks a path as one that is to be kept, in a child's resources.
pub(crate) const READ_ONLY: &str = "keep:";

impl Started {
    /// Sends a child its resources and waits for what it says of its lockdown.
    pub(crate) fn begin(&self, gifts: &Gifts<'_>) -> String {
        let mut words: Vec<String> = gifts.trees.iter().map(|(path, _)| (*path).to_owned()).collect();
        words.extend(gifts.read_only.iter().map(|path| format!("{READ_ONLY}{path}")));
        let view = if gifts.composed { "composed" } else { "host" };
        let text = format!("{UID} {} {view} {}", i32::from(gifts.network.is_some()), words.join(" "));
        let mut descriptors: Vec<BorrowedFd<'_>> = gifts.network.iter().copied().collect();
        descriptors.extend(gifts.trees.iter().map(|(_, tree)| tree.as_fd()));
        send(self.control.as_fd(), &text, &descriptors);
        receive(self.control.as_fd()).map_or_else(|| "closed".into(), |(text, _)| text)
    }

    /// Tells it what to try and waits for its end.
    pub(crate) fn probe(self, probe: &str, descriptors: &[BorrowedFd<'_>]) -> Ended {
        send(self.control.as_fd(), probe, descriptors);
        let answer = receive(self.control.as_fd()).map(|(text, _)| text);
        self.end(answer)
    }

    /// Waits for its end.
    pub(crate) fn end(mut self, answer: Option<String>) -> Ended {
        drop(self.control);
        let exit = self.child.wait().unwrap();
        let mut log = String::new();
        self.log.read_to_string(&mut log).unwrap();
        Ended { exit, log, answer }
    }
}

/// A directory of the host shown as the child's own.
pub(crate) fn tree(directory: &Path, read_only: bool) -> OwnedFd {
    let directory = std::fs::File::open(directory).unwrap();
    let map = confine::mount::id_map((0, 0), (UID, UID)).unwrap();
    confine::mount::tree(directory.as_fd(), Some(&map), confine::mount::Attributes { read_only }).unwrap()
}

/// A directory of compiled code.
fn code(directory: &Path) -> OwnedFd {
    let directory = std::fs::File::open(directory).unwrap();
    confine::mount::code_tree(directory.as_fd()).unwrap()
}

/// A directory that is removed at the end of the case.
pub(crate) struct Scratch(pub(crate) std::path::PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("confine-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child of this role, ready, with the directories its role has: all of them `scratch`, but for the cache, which is
/// another directory on disk, for Landlock knows directories by what they are and not by where they are mounted.
pub(crate) fn ready(role: Role, scratch: &Scratch) -> Started {
    let started = start(role.name());
    let cache = scratch.0.join("cache");
    if role == Role::SandboxHost {
        std::fs::create_dir_all(&cache).unwrap();
        std::fs::write(cache.join("file"), "x").unwrap();
    }
    let trees = match role {
        Role::Fileserver => vec![("/workdir", tree(&scratch.0, true))],
        Role::SandboxHost => vec![
            ("/workdir", tree(&scratch.0, false)),
            ("/session", tree(&scratch.0, false)),
            ("/runtime", tree(&scratch.0, true)),
            ("/cache", code(&cache)),
        ],
        Role::Door | Role::Runner | Role::Egress | Role::Compiler => Vec::new(),
    };
    assert_eq!(started.begin(&Gifts { trees, ..Gifts::default() }), "ready", "{role:?}");
    started
}
