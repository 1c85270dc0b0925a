//! What exactly is executed for a request: decided and put into OS strings before anything is forked.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use confine::programs::Limits;
use ipc::edge::control::RunnerConfigure;
use ipc::edge::host_runner::Program;
use rustix::process::{Resource, getrlimit};

use crate::environment;

/// The runner's own copy of what may run.
#[derive(Debug)]
pub(crate) struct Allowed {
    programs: BTreeMap<String, PathBuf>,
    environment: Vec<(String, String)>,
    workdir: PathBuf,
    limits: Limits,
    /// Patterns of variables that no request sets.
    strip_env: Vec<String>,
}

/// A program ready to be executed.
#[derive(Debug)]
pub(crate) struct Command<'a> {
    /// Absolute path of the file.
    pub(crate) program: &'a Path,
    /// The name it was asked for by, then its arguments; no NUL byte in them.
    pub(crate) arguments: Vec<OsString>,
    /// The whole environment.
    pub(crate) environment: Vec<(OsString, OsString)>,
}

/// Why a request starts nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The program is not on the list.
    NotAllowed,
    /// The request cannot be executed, in words.
    Unusable(&'static str),
}

impl Allowed {
    /// Takes the list as the broker resolved it at launch.
    ///
    /// # Errors
    /// The name of a program whose path is not absolute: nothing is looked up later, least of all in the working directory.
    pub(crate) fn new(configure: &RunnerConfigure) -> Result<Self, String> {
        let mut programs = BTreeMap::new();
        for (name, path) in &configure.programs {
            let path = PathBuf::from(path);
            if !path.is_absolute() {
                return Err(name.clone());
            }
            programs.insert(name.clone(), path);
        }
        let limits = limits(&configure.limits);
        let workdir = PathBuf::from(&configure.workdir);
        let (environment, strip_env) = (configure.environment.clone(), configure.strip_env.clone());
        Ok(Allowed { programs, environment, workdir, limits, strip_env })
    }

    /// The files of the list.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.programs.values().cloned().collect()
    }

    /// Where programs begin.
    pub(crate) fn workdir(&self) -> &Path {
        &self.workdir
    }

    /// The names that a request gives and no request may set.
    pub(crate) fn dropped(&self, request: &[(String, String)]) -> Vec<String> {
        environment::dropped(request, &self.strip_env)
    }

    /// What a program may use up.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Judges a request by the exact name on the list and prepares it.
    ///
    /// # Errors
    /// [`Refusal`].
    pub(crate) fn command(&self, asked: &Program) -> Result<Command<'_>, Refusal> {
        let program = self.programs.get(&asked.name).ok_or(Refusal::NotAllowed)?;
        if asked.args.iter().any(|argument| argument.contains('\0')) {
            return Err(Refusal::Unusable("an argument holds a NUL byte"));
        }
        let arguments = std::iter::once(&asked.name).chain(&asked.args).map(OsString::from).collect();
        let environment = environment::compose(&self.environment, &asked.env, &self.strip_env)
            .map_err(Refusal::Unusable)?;
        Ok(Command { program, arguments, environment })
    }
}

/// The limits, none above what this process has itself: only root could raise one.
fn limits(asked: &ipc::edge::control::Limits) -> Limits {
    let within = |resource, value: u64, room: u64| {
        let ceiling = getrlimit(resource).maximum.unwrap_or(u64::MAX);
        Some(value.min(ceiling.saturating_sub(room)))
    };
    Limits {
        open_files: within(Resource::Nofile, asked.open_files, 0),
        file_size: within(Resource::Fsize, asked.file_size, 0),
        // The hard limit is one second above.
        cpu_seconds: within(Resource::Cpu, asked.cpu_seconds, 1),
        memory: within(Resource::As, asked.memory, 0),
        processes: within(Resource::Nproc, asked.processes, 0),
    }
}

#[cfg(test)]
mod tests {
    use ipc::edge::control::Controllers;

    use super::*;

    fn configure(programs: &[(&str, &str)]) -> RunnerConfigure {
        let limits = ipc::edge::control::Limits {
            open_files: 1,
            file_size: 1,
            cpu_seconds: 1,
            memory: 1,
            processes: 1,
        };
        let programs = programs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        RunnerConfigure {
            workdir: "/".into(),
            programs,
            environment: vec![],
            limits,
            leaves: 1,
            controllers: Controllers::default(),
            pids_max: 1,
            strip_env: vec![],
        }
    }

    fn run(name: &str, args: &[&str]) -> Program {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Program { name: name.into(), args, env: vec![] }
    }

    #[test]
    fn only_the_exact_name_on_the_list_is_allowed() {
        let allowed = Allowed::new(&configure(&[("git", "/usr/bin/git")])).unwrap();
        let command = allowed.command(&run("git", &["--version"])).unwrap();
        assert_eq!(command.program, Path::new("/usr/bin/git"));
        assert_eq!(command.arguments, ["git", "--version"]);
        for other in ["./git", "/usr/bin/git", "Git", "git ", "", "git\0", "sh", "../git"] {
            assert_eq!(allowed.command(&run(other, &[])).unwrap_err(), Refusal::NotAllowed, "{other:?}");
        }
    }

    #[test]
    fn a_list_with_a_relative_path_is_refused_whole() {
        for path in ["git", "./git", ""] {
            assert_eq!(Allowed::new(&configure(&[("git", path)])).unwrap_err(), "git");
        }
    }

    #[test]
    fn a_limit_is_never_above_this_process_its_own() {
        let all = u64::MAX;
        let asked = ipc::edge::control::Limits {
            open_files: all,
            file_size: 5,
            cpu_seconds: all,
            memory: all,
            processes: all,
        };
        let given = limits(&asked);
        assert_eq!(given.file_size, Some(5));
        assert_eq!(given.open_files, Some(getrlimit(Resource::Nofile).maximum.unwrap_or(all)));
        assert_eq!(given.processes, Some(getrlimit(Resource::Nproc).maximum.unwrap_or(all)));
        assert!(given.cpu_seconds < Some(all), "room for the hard limit");
    }

    #[test]
    fn an_argument_with_a_nul_byte_is_unusable() {
        let allowed = Allowed::new(&configure(&[("git", "/usr/bin/git")])).unwrap();
        assert!(matches!(allowed.command(&run("git", &["a\0b"])), Err(Refusal::Unusable(_))));
    }
}
