//! The first steps of every process the broker starts, in one place: hello, `Begin`, confinement, `Ready`.
//!
//! `ipc` and `confine` do not know each other; this crate is where the two meet. A process that cannot become what it was
//! told to become reports why on its control channel and exits with status 1; it never goes on with less.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ipc::edge::control::{Birth, FromRole, Programs, Report, RoleControl};
use ipc::types::Class;
use ipc::{CONTROL_DESCRIPTOR, ChannelError, Message};

/// How long a started process waits for its first message.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a process ended before `Ready`.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The control channel broke.
    #[error("control channel: {0}")]
    Channel(#[from] ChannelError),
    /// A step of the confinement failed.
    #[error(transparent)]
    Confine(#[from] confine::ConfineError),
}

/// Becomes `role`: returns the control channel once the process is locked down and the broker was told so, together with
/// what programs see and may touch (the runner alone is told).
///
/// Must be called first thing in `main`, while the process has one thread and owns no descriptor but the standard ones and
/// [`CONTROL_DESCRIPTOR`].
///
/// # Errors
/// [`StartError`]; the broker has been told, the caller exits with status 1.
pub fn start<O: Message>(role: confine::Role) -> Result<(RoleControl<O>, Option<Programs>), StartError> {
    confine::handler::arm();
    // sandbox-host has made its engine by now, whose handlers these would replace; it calls this before.
    if role != confine::Role::SandboxHost {
        confine::handler::arm_for_faults();
    }
    let control = ipc::sys::inherited(CONTROL_DESCRIPTOR);
    let (control, begin, descriptors) = Birth::<O>::begin(control, Instant::now() + PATIENCE)?;
    let mut descriptors = descriptors.into_iter();
    let network = if begin.join_network { descriptors.next() } else { None };
    let trees = begin.trees.iter().map(PathBuf::from).zip(descriptors).collect();
    let resources = confine::Resources {
        uid: begin.uid,
        gid: begin.gid,
        rights: if begin.user_namespace { confine::Rights::User } else { confine::Rights::Root },
        network,
        trees,
        read_only: begin.read_only.iter().map(PathBuf::from).collect(),
        view: view(begin.programs.as_ref()),
    };
    match confine::enter(role, resources) {
        Ok(report) => {
            control.send(&FromRole::Ready(Report { landlock_abi: report.landlock_abi }))?;
            Ok((control, begin.programs))
        }
        Err(error) => {
            let _ = control.send(&FromRole::Failed(error.to_string()));
            Err(error.into())
        }
    }
}

/// The root that programs live in.
fn view(programs: Option<&Programs>) -> confine::View {
    match programs {
        Some(programs) if programs.tier == Class::Sealed => {
            let shown = programs.shown.iter().map(|directory| PathBuf::from(&directory.path)).collect();
            confine::View::Composed(confine::composed::Composed {
                unix_sockets: programs.unix_sockets,
                home: PathBuf::from(&programs.home),
                shown,
            })
        }
        // Below `scoped` programs change what their id may change.
        Some(programs) => confine::View::Host { fixed: programs.tier == Class::Scoped },
        None => confine::View::Host { fixed: true },
    }
}
