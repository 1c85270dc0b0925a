//! What a program needs to start: its ELF or `#!` interpreter and its libraries, found as the loader finds them.
//!
//! The files are the host's, but an ELF file is data from a package or a build: nothing in it is believed without a bound. A
//! file that cannot be read as ELF contributes nothing; the program is then refused what it lacks, never given more.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::elf::{Elf, Machine};

/// The most files one closure holds.
const MOST: usize = 512;
/// The longest `#!` line that is read, as in the kernel.
const SCRIPT_LINE: usize = 256;

/// Where the loader looks when nothing else is said; every match counts, whichever the loader prefers.
const DIRECTORIES: [&str; 10] = [
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/lib64",
];

/// Everything the start of some programs reads. All paths are canonical.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Closure {
    /// Interpreters: they are executed, too.
    pub executable: BTreeSet<PathBuf>,
    /// Libraries: they are read.
    pub readable: BTreeSet<PathBuf>,
}

impl Closure {
    /// Adds what a program needs. A file that is neither ELF nor a `#!` script adds nothing.
    pub fn add(&mut self, program: &Path) {
        let mut program = program.to_owned();
        if let Some(interpreter) = script_interpreter(&program) {
            let Ok(canonical) = interpreter.canonicalize() else { return };
            self.executable.insert(canonical.clone());
            program = canonical;
        }
        let Some(elf) = Elf::read(&program) else { return };
        if let Some(Ok(interpreter)) = elf.interpreter.as_ref().map(|path| path.canonicalize()) {
            self.executable.insert(interpreter.clone());
            self.libraries(&interpreter, &[], &DIRECTORIES.map(PathBuf::from));
        }
        self.libraries(&program, &[], &DIRECTORIES.map(PathBuf::from));
    }

    /// Adds the libraries of one file; `inherited` are the DT_RPATH directories of what loads it.
    fn libraries(&mut self, file: &Path, inherited: &[PathBuf], defaults: &[PathBuf]) {
        let Some(elf) = Elf::read(file) else { return };
        let origin = file.parent().unwrap_or(Path::new("/"));
        // DT_RUNPATH replaces the object's own and inherited DT_RPATH, and is not inherited.
        let mut search: Vec<PathBuf> = if elf.run_path.is_empty() {
            let own = elf.r_path.iter().map(|entry| expand(entry, origin));
            own.chain(inherited.iter().cloned()).collect()
        } else {
            elf.run_path.iter().map(|entry| expand(entry, origin)).collect()
        };
        let passed_on = if elf.run_path.is_empty() { search.clone() } else { Vec::new() };
        search.extend_from_slice(defaults);
        for name in &elf.needed {
            // A name with a slash is a path; the loader takes it as it is.
            let places: Vec<PathBuf> = if name.as_os_str().as_bytes().contains(&b'/') {
                vec![name.clone()]
            } else {
                search.iter().flat_map(|directory| candidates(directory, name)).collect()
            };
            for place in places {
                self.library(&place, elf.machine, &passed_on, defaults);
            }
        }
    }

    fn library(&mut self, place: &Path, machine: Machine, inherited: &[PathBuf], defaults: &[PathBuf]) {
        let Ok(canonical) = place.canonicalize() else { return };
        if self.readable.len() >= MOST || self.readable.contains(&canonical) {
            return;
        }
        if Elf::read(&canonical).is_some_and(|elf| elf.machine == machine) {
            self.readable.insert(canonical.clone());
            self.libraries(&canonical, inherited, defaults);
        }
    }
}

/// The places of a library below one directory: plain, and the variants for newer processors.
fn candidates(directory: &Path, name: &Path) -> Vec<PathBuf> {
    let variants = ["glibc-hwcaps/x86-64-v4", "glibc-hwcaps/x86-64-v3", "glibc-hwcaps/x86-64-v2"];
    let mut places = vec![directory.join(name)];
    places.extend(variants.iter().map(|variant| directory.join(variant).join(name)));
    places
}

/// Replaces `$ORIGIN` by the directory of the file that says it. An entry that is still relative finds nothing.
fn expand(entry: &Path, origin: &Path) -> PathBuf {
    let text = entry.to_string_lossy();
    for token in ["$ORIGIN", "${ORIGIN}"] {
        if let Some(rest) = text.strip_prefix(token) {
            return origin.join(rest.trim_start_matches('/'));
        }
    }
    if entry.is_absolute() { entry.to_owned() } else { PathBuf::from("/nonexistent") }
}

/// The interpreter a script names in its first line.
fn script_interpreter(program: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    File::open(program).ok()?.take(SCRIPT_LINE as u64).read_to_end(&mut line).ok()?;
    let line = line.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = line.split(|byte| byte.is_ascii_whitespace()).find(|word| !word.is_empty())?;
    let path = Path::new(std::ffi::OsStr::from_bytes(word));
    path.is_absolute().then(|| path.to_owned())
}

#[cfg(test)]
#[path = "closure_tests.rs"]
mod tests;
