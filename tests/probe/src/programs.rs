//! Executing what nobody allowed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Case, Seen, raw};

/// What this program is called, and prints, when it was executed from where it may not be.
pub(crate) const PLANTED: &str = "it-was-executed";

pub(crate) const CASES: &[Case] = &[
    ("planted", |_| ran(&mut Command::new(plant(Path::new("."))?))),
    ("planted-in-tmp", |_| ran(&mut Command::new(plant(&std::env::temp_dir())?))),
    ("planted-at-home", |_| {
        let home = std::env::var_os("HOME").ok_or_else(|| io::Error::other("no HOME"))?;
        ran(&mut Command::new(plant(Path::new(&home))?))
    }),
    ("loader", loader),
    ("mapped", mapped),
    ("memory-file", |_| memory_file(0)),
    ("memory-file-executable", |_| memory_file(0x10)),
    ("by-descriptor", by_descriptor),
    ("not-allowed", |arguments| {
        let program = arguments.first().ok_or_else(|| io::Error::other("no program was named"))?;
        Command::new(program).arg("--version").output().map(|output| format!("{}", output.status))
    }),
];

/// A copy of this program, executable by its mode.
fn plant(directory: &Path) -> io::Result<PathBuf> {
    let path = directory.canonicalize()?.join(PLANTED);
    let _ = fs::remove_file(&path);
    fs::write(&path, fs::read("/proc/self/exe")?)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn ran(command: &mut Command) -> Seen {
    let output = command.arg0(PLANTED).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if text.contains(PLANTED) {
        Ok("it ran".into())
    } else {
        Err(io::Error::other(format!("{}", output.status)))
    }
}

/// The loader may be executed, and executes what it is given.
fn loader(_: &[String]) -> Seen {
    let planted = plant(Path::new("."))?;
    let loaders = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1"];
    let loader = loaders.into_iter().find(|path| Path::new(path).exists());
    let loader = loader.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
    ran(Command::new(loader).arg(&planted).arg(PLANTED))
}

/// What the loader does, by hand.
fn mapped(_: &[String]) -> Seen {
    let planted = File::open(plant(Path::new("."))?)?;
    let (protection, flags) = ((libc::PROT_READ | libc::PROT_EXEC).into(), libc::MAP_PRIVATE.into());
    raw::call(libc::SYS_mmap, [0, 4096, protection, flags, planted.as_raw_fd().into(), 0])?;
    Ok("code was mapped".into())
}

/// A file without a name, then the program in it.
fn memory_file(flags: i64) -> Seen {
    let number = raw::call(libc::SYS_memfd_create, [raw::text(c"x"), flags, 0, 0, 0, 0])?;
    let number = i32::try_from(number).unwrap_or(-1);
    // SAFETY: the kernel has just returned this number.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(number) });
    file.write_all(&fs::read("/proc/self/exe")?)?;
    // Opened for writing, nothing can be executed: again, for reading.
    let again = File::open(format!("/proc/self/fd/{number}"))?;
    drop(file);
    ran(&mut Command::new(format!("/proc/self/fd/{}", again.as_raw_fd())))
}

/// A program by its descriptor, whatever its path would have said.
fn by_descriptor(_: &[String]) -> Seen {
    const EMPTY_PATH: i64 = 0x1000;
    let planted = File::open(plant(Path::new("."))?)?;
    let argv = [c"it-was-executed".as_ptr(), std::ptr::null()];
    let number = planted.as_raw_fd().into();
    raw::call(libc::SYS_execveat, [number, raw::text(c""), raw::address(&argv), 0, EMPTY_PATH, 0])?;
    Ok("executed".into())
}
