//! Files outside what was granted, and files made to be more than files.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::{Case, Seen, raw};

pub(crate) const CASES: &[Case] = &[
    ("read", |arguments| fs::read(path(arguments)?).map(|bytes| format!("{} bytes", bytes.len()))),
    ("write", |arguments| {
        OpenOptions::new().append(true).open(path(arguments)?)?.write_all(b"x")?;
        Ok("written".into())
    }),
    ("make", |arguments| File::create_new(path(arguments)?).map(|_| "made".into())),
    ("stat", |arguments| fs::metadata(path(arguments)?).map(|_| "there".into())),
    ("list", |arguments| {
        fs::read_dir(path(arguments)?).map(|entries| format!("{} entries", entries.count()))
    }),
    ("hard-link", |arguments| fs::hard_link(path(arguments)?, "linked").map(|()| "linked".into())),
    ("rename-out", |arguments| {
        fs::write("renamed", "x")?;
        fs::rename("renamed", path(arguments)?).map(|()| "renamed".into())
    }),
    ("link-out", link_out),
    ("parent", |_| fs::read_dir("..").map(|entries| format!("{} entries", entries.count()))),
    ("times", times),
    ("device-node", device_node),
    ("set-id-chmod", |_| set_id(|| fs::set_permissions("set-id", fs::Permissions::from_mode(0o4755)))),
    ("set-id-open", set_id_open),
    ("set-id-fchmodat2", set_id_fchmodat2),
    ("own-file", own_file),
    ("runners-file", |_| {
        OpenOptions::new().write(true).open("/proc/1/exe").map(|_| "open for writing".into())
    }),
    ("own-cgroup", own_cgroup),
    ("handle", handle),
];

fn path(arguments: &[String]) -> io::Result<&Path> {
    arguments.first().map(Path::new).ok_or_else(|| io::Error::other("no path was given"))
}

/// Through a symbolic link of one's own, which no check of names sees.
fn link_out(arguments: &[String]) -> Seen {
    let _ = fs::remove_file("out-link");
    symlink(path(arguments)?, "out-link")?;
    fs::read("out-link").map(|bytes| format!("{} bytes", bytes.len()))
}

/// Changing times needs no right that Landlock knows: a read-only mount alone refuses it.
fn times(arguments: &[String]) -> Seen {
    let path = CString::new(path(arguments)?.to_string_lossy().as_bytes())?;
    raw::call(libc::SYS_utimensat, [libc::AT_FDCWD.into(), raw::text(&path), 0, 0, 0, 0])?;
    Ok("changed".into())
}

fn device_node(_: &[String]) -> Seen {
    let mode = (libc::S_IFBLK | 0o600).into();
    let device = i64::try_from(libc::makedev(254, 0)).unwrap_or(0);
    raw::call(libc::SYS_mknodat, [libc::AT_FDCWD.into(), raw::text(c"node"), mode, device, 0, 0])?;
    Ok("made".into())
}

/// Whether a file in the workdir has come to be set-id.
fn set_id(change: impl FnOnce() -> io::Result<()>) -> Seen {
    fs::write("set-id", "x")?;
    let changed = change();
    let mode = fs::metadata("set-id")?.permissions().mode();
    if mode & 0o6000 != 0 {
        return Ok(format!("mode {mode:o}"));
    }
    Err(changed.err().unwrap_or_else(|| io::Error::other("the bit was dropped")))
}

fn set_id_open(_: &[String]) -> Seen {
    let _ = fs::remove_file("set-id-open");
    let flags = (libc::O_CREAT | libc::O_WRONLY).into();
    raw::call(libc::SYS_openat, [libc::AT_FDCWD.into(), raw::text(c"set-id-open"), flags, 0o6755, 0, 0])?;
    Ok(format!("mode {:o}", fs::metadata("set-id-open")?.permissions().mode()))
}

fn set_id_fchmodat2(_: &[String]) -> Seen {
    /// `fchmodat2`, the same number on every architecture.
    const FCHMODAT2: i64 = 452;
    set_id(|| raw::call(FCHMODAT2, [libc::AT_FDCWD.into(), raw::text(c"set-id"), 0o2755, 0, 0, 0]).map(drop))
}

/// The program's own file, which others execute.
fn own_file(_: &[String]) -> Seen {
    let own = fs::read_link("/proc/self/exe")?;
    for path in [Path::new("/proc/self/exe"), &own] {
        if OpenOptions::new().write(true).open(path).is_ok() {
            return Ok(format!("{} is open for writing", path.display()));
        }
    }
    OpenOptions::new().write(true).open(own).map(|_| String::new())
}

/// The limits of the group one is in.
fn own_cgroup(_: &[String]) -> Seen {
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let mut last = io::Error::from_raw_os_error(libc::ENOENT);
    for mount in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
        for file in ["cgroup.procs", "memory.max", "pids.max", "cgroup.kill"] {
            let path = format!("{mount}{group}/{file}");
            match OpenOptions::new().write(true).open(&path) {
                Ok(_) => return Ok(format!("{path} is open for writing")),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => last = error,
            }
        }
    }
    Err(last)
}

/// A handle of a file is opened past every path.
fn handle(_: &[String]) -> Seen {
    let handle = [0_u8; 64];
    raw::call(libc::SYS_open_by_handle_at, [libc::AT_FDCWD.into(), raw::address(&handle), 0, 0, 0, 0])?;
    Ok("open".into())
}
