//! The command line: one table of flags, which `--help` prints.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::refusal::Refusal;

/// Runs a packaged agent (a Murmur capsule) as six processes that do not trust each other.
#[derive(Debug, Parser)]
#[command(name = "broker", version, max_term_width = 100)]
#[command(
    after_help = "Exit status: 0 ended well; 1 refused, or a task failed; 2 usage; 3 a process of the \
    session died or broke the protocol; 143 stopped hard. See capsule-broker's docs/operations.md."
)]
pub(crate) struct Cli {
    /// The capsule's manifest, murmur.yaml
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: PathBuf,
    /// The directory the agent works in [default: workdir/<session> beside the manifest]
    #[arg(long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,
    /// The first task's text
    #[arg(long, value_name = "TEXT", conflicts_with = "serve_only")]
    pub(crate) task: Option<String>,
    /// End after the task; the same as --after-task exit
    #[arg(long, conflicts_with_all = ["after_task", "serve_only"])]
    pub(crate) once: bool,
    /// Overrides lifecycle.task_acceptance
    #[arg(long, value_name = "WORD", conflicts_with = "serve_only")]
    pub(crate) task_acceptance: Option<Acceptance>,
    /// Overrides lifecycle.after_task
    #[arg(long, value_name = "WORD", conflicts_with = "serve_only")]
    pub(crate) after_task: Option<AfterTask>,
    /// Serve the files of an existing workdir, without an agent
    #[arg(long, requires = "workdir")]
    pub(crate) serve_only: bool,
    /// Raise the containment floor
    #[arg(long, value_name = "CLASS")]
    pub(crate) containment: Option<Class>,
    /// Listen here
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,
    /// The URL clients use, for the card; needed when listening on an unspecified address
    #[arg(long, value_name = "URL")]
    pub(crate) public_url: Option<String>,
    /// Uids and gids that sessions may take; the first one owns workdirs the broker makes
    #[arg(long, value_name = "FIRST-LAST", default_value = "1900000000-1900065535")]
    pub(crate) uid_range: UidRange,
    /// Check the manifest and the host, start nothing
    #[arg(long)]
    pub(crate) check: bool,
    /// Print the ready line only, no banner
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing but the ready line and errors
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Launch although the manifest has keys this version does not know or build; each is a warning
    #[arg(long)]
    pub(crate) allow_unknown_keys: bool,
    /// Launch although the host cannot enforce this
    #[arg(long, value_name = "WHAT")]
    pub(crate) accept_missing: Vec<Missing>,
    /// Where installed artifacts are, may be repeated [default: artifacts in the state directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) artifact_dir: Vec<PathBuf>,
    /// Trust the certificates in this PEM file too, beside the host's own; may be repeated
    #[arg(long, value_name = "FILE", conflicts_with = "serve_only")]
    pub(crate) ca_file: Vec<PathBuf>,
    /// Records, sessions and installed artifacts [an ordinary user's: capsule-broker in $XDG_STATE_HOME]
    #[arg(long, value_name = "DIR", env = "STATE_DIRECTORY", default_value = "/var/lib/capsule-broker")]
    pub(crate) state_dir: PathBuf,
    /// Compiled components [an ordinary user's: capsule-broker in $XDG_CACHE_HOME]
    #[arg(long, value_name = "DIR", env = "CACHE_DIRECTORY", default_value = "/var/cache/capsule-broker")]
    pub(crate) cache_dir: PathBuf,
    /// Locks and per-session runtime directories [an ordinary user's: capsule-broker in $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "DIR", env = "RUNTIME_DIRECTORY", default_value = "/run/capsule-broker")]
    pub(crate) run_dir: PathBuf,
    /// Of these three, those that nobody named.
    #[arg(skip)]
    unnamed: Vec<Place>,
}

/// What is asked instead of a launch.
#[derive(Debug, Subcommand)]
pub(crate) enum Question {
    /// Say what a code means and what helps; all of them without one
    Explain {
        /// As a message has it, E-CAP-003
        code: Option<String>,
    },
    /// Print the JSON Schema of murmur.yaml, for editors
    Schema,
    /// Print the record of a session as a timeline
    #[command(disable_help_flag = true)]
    Trace {
        /// FILE [--follow] [--json]
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
        words: Vec<OsString>,
    },
}

/// What the command line asks for.
#[derive(Debug)]
pub(crate) enum Asked {
    Launch(Box<Cli>),
    Question(Question),
}

/// A directory of the installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    State,
    Cache,
    Run,
}

/// Launches and questions.
fn whole() -> clap::Command {
    let launch = Cli::command();
    let about = launch.get_about().cloned();
    Question::augment_subcommands(launch)
        .about(about.unwrap_or_default())
        .subcommand_required(false)
        .arg_required_else_help(false)
        .args_conflicts_with_subcommands(true)
        .subcommand_negates_reqs(true)
        .disable_help_subcommand(true)
}

impl Cli {
    /// Reads the command line; ends the process with 2 or 0 where clap does.
    pub(crate) fn read() -> Asked {
        let matches = whole().get_matches();
        let asked = match matches.subcommand() {
            Some(_) => Question::from_arg_matches(&matches).map(Asked::Question),
            None => Cli::taken_from(&matches).map(|cli| Asked::Launch(Box::new(cli))),
        };
        asked.unwrap_or_else(|error| error.exit())
    }

    fn taken_from(matches: &ArgMatches) -> Result<Cli, clap::Error> {
        let mut cli = Cli::from_arg_matches(matches)?;
        let places = [("state_dir", Place::State), ("cache_dir", Place::Cache), ("run_dir", Place::Run)];
        let unnamed = |name: &str| matches.value_source(name) == Some(ValueSource::DefaultValue);
        cli.unnamed = places.into_iter().filter_map(|(name, place)| unnamed(name).then_some(place)).collect();
        Ok(cli)
    }

    /// Puts the directories that nobody named where an ordinary user has them, by the XDG Base Directory Specification.
    ///
    /// # Errors
    /// `E-IO-001` naming the variable that says nothing.
    pub(crate) fn move_to_the_user(
        &mut self,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<(), Refusal> {
        // A relative path in one of them is invalid and ignored.
        let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = |below: &str| absolute("HOME").map(|home| home.join(below));
        for place in std::mem::take(&mut self.unnamed) {
            let (slot, found, named, flag) = match place {
                Place::State => (
                    &mut self.state_dir,
                    absolute("XDG_STATE_HOME").or_else(|| home(".local/state")),
                    "XDG_STATE_HOME, HOME",
                    "--state-dir",
                ),
                Place::Cache => (
                    &mut self.cache_dir,
                    absolute("XDG_CACHE_HOME").or_else(|| home(".cache")),
                    "XDG_CACHE_HOME, HOME",
                    "--cache-dir",
                ),
                Place::Run => {
                    (&mut self.run_dir, absolute("XDG_RUNTIME_DIR"), "XDG_RUNTIME_DIR", "--run-dir")
                }
            };
            let base = found.ok_or_else(|| {
                Refusal::new("E-IO-001", named, "it names no absolute path")
                    .hint(format!("log in by a session that sets it, or name a directory with {flag}"))
            })?;
            *slot = base.join("capsule-broker");
        }
        Ok(())
    }
}

/// `lifecycle.task_acceptance`
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Acceptance {
    /// No task over the network
    None,
    /// One task in total
    Single,
    /// As many as the queue holds
    Queue,
}

/// `lifecycle.after_task`
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum AfterTask {
    /// End
    Exit,
    /// Wait for the next task
    Sleep,
}

/// Containment classes, weakest first
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Class {
    /// No file system confinement of programs
    Advisory,
    /// Landlock and seccomp over the host's file system
    Scoped,
    /// A composed root besides
    Sealed,
}

/// What a host may lack with the operator's consent
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Missing {
    /// cgroup v2 controllers: memory, process and CPU limits of all programs together are not enforced
    CgroupLimits,
}

/// A range of ids, inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UidRange {
    /// The first, owner of workdirs the broker makes.
    pub(crate) first: u32,
    /// The last.
    pub(crate) last: u32,
}

impl std::str::FromStr for UidRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('-').and_then(|(first, last)| {
            Some(UidRange { first: first.parse().ok()?, last: last.parse().ok()? })
        });
        match parsed {
            Some(range) if range.first < 1000 => Err("ids below 1000 belong to the system".into()),
            // The last two ids mean "nobody" and "no change" to the kernel.
            Some(range) if range.last >= u32::MAX - 1 => Err("the last id is not usable".into()),
            Some(range) if range.last < range.first || range.last - range.first < 6 => {
                Err("a range needs at least seven ids".into())
            }
            Some(range) => Ok(range),
            None => Err("write FIRST-LAST, for example 1900000000-1900065535".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uid_ranges_that_reach_the_system_or_hold_no_session_are_refused() {
        for bad in ["", "5", "0-100", "1000-1005", "2000-1000", "1000-4294967295", "a-b", "1000-2000-3000"] {
            assert!(bad.parse::<UidRange>().is_err(), "{bad}");
        }
        assert_eq!("1000-1006".parse(), Ok(UidRange { first: 1000, last: 1006 }));
    }

    #[test]
    fn the_command_line_is_consistent() {
        whole().debug_assert();
        assert!(whole().render_help().to_string().starts_with("Runs a packaged agent"));
        assert!(whole().try_get_matches_from(["broker"]).is_err(), "a manifest or a question");
        assert!(whole().try_get_matches_from(["broker", "--manifest", "m", "explain"]).is_err());
        for question in [&["explain", "E-CAP-003"][..], &["trace", "--help"], &["trace", "f", "--follow"]] {
            let words = ["broker"].iter().chain(question);
            assert!(whole().try_get_matches_from(words).is_ok(), "{question:?}");
        }
    }

    /// Whatever the environment of the test says.
    fn without_environment(command: clap::Command) -> clap::Command {
        ["state_dir", "cache_dir", "run_dir"]
            .into_iter()
            .fold(command, |command, name| command.mut_arg(name, |argument| argument.env(None::<&str>)))
    }

    /// The three directories after a command line, for a user with these variables.
    fn places(arguments: &[&str], variables: &[(&str, &str)]) -> Result<[String; 3], Refusal> {
        let words = ["broker", "--manifest", "m"].iter().chain(arguments);
        let matches = without_environment(Cli::command()).try_get_matches_from(words).unwrap();
        let mut cli = Cli::taken_from(&matches).unwrap();
        cli.move_to_the_user(|name| {
            variables.iter().find_map(|(known, value)| (*known == name).then(|| OsString::from(value)))
        })?;
        Ok([cli.state_dir, cli.cache_dir, cli.run_dir].map(|path| path.display().to_string()))
    }

    #[test]
    fn an_ordinary_users_directories_are_where_the_xdg_variables_say_unless_named() {
        const RUN: (&str, &str) = ("XDG_RUNTIME_DIR", "/run/user/7");
        const HOME: (&str, &str) = ("HOME", "/home/u");
        let found = places(&[], &[HOME, RUN]).unwrap();
        assert_eq!(
            found,
            [
                "/home/u/.local/state/capsule-broker",
                "/home/u/.cache/capsule-broker",
                "/run/user/7/capsule-broker"
            ]
        );
        let found = places(&[], &[("XDG_STATE_HOME", "/s"), ("XDG_CACHE_HOME", "c"), HOME, RUN]).unwrap();
        assert_eq!(found[..2], ["/s/capsule-broker", "/home/u/.cache/capsule-broker"], "relative is invalid");
        let all = ["--state-dir", "/1", "--cache-dir", "/2", "--run-dir", "/3"];
        assert_eq!(places(&all, &[]).unwrap(), ["/1", "/2", "/3"]);
        for (arguments, variables, named) in [
            (&[][..], &[HOME][..], "XDG_RUNTIME_DIR"),
            (&[], &[HOME, ("XDG_RUNTIME_DIR", "run")], "XDG_RUNTIME_DIR"),
            (&["--cache-dir", "/2"], &[RUN], "XDG_STATE_HOME, HOME"),
            (&["--state-dir", "/1"], &[RUN], "XDG_CACHE_HOME, HOME"),
        ] {
            let refusal = places(arguments, variables).unwrap_err();
            assert_eq!(refusal.code, "E-IO-001", "{refusal}");
            assert!(refusal.what == named, "{refusal}");
        }
    }
}
