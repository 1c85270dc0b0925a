//! The compiler process: one artifact in, facts and native code out, then it ends.
//!
//! It holds three descriptors the broker gave it: the channel for its answer, the artifact's bytes, and the file the native
//! code goes to. It opens nothing, connects to nothing and never runs what it compiles. The bytes are foreign: a bug in the
//! archive reader, the manifest parser or the compiler ends in this process. It believes the broker's order and nothing of
//! what the artifact says about itself beyond the facts it reports; the broker names the cache entry, not this process.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use compiler::{MAX_ARTIFACT, REASON_BYTES, Refusal};
use ipc::edge::compiler::{CompilerToBroker, Job};
use ipc::edge::control::{CompilerOrder, ToRole};
use ipc::{Channel, Never};

/// More threads than this do not pay for the components there are.
const MAX_THREADS: usize = 4;

fn main() -> ExitCode {
    let mut control = match role::start::<CompilerOrder>(confine::Role::Compiler) {
        Ok((control, _class)) => control,
        Err(error) => return fail(&error.to_string()),
    };
    let order = match control.receive() {
        Ok(received) => received,
        Err(error) => return fail(&format!("control channel: {error}")),
    };
    match order.exactly::<3>() {
        Ok((ToRole::Order(CompilerOrder::Compile(job)), descriptors)) => match run(&job, descriptors) {
            Ok(()) => ExitCode::SUCCESS,
            Err(reason) => fail(&reason),
        },
        Ok((ToRole::Begin(_) | ToRole::Shutdown, _)) | Err(_) => fail("the order is not to compile"),
    }
}

fn fail(reason: &str) -> ExitCode {
    eprintln!("compiler: {reason}");
    ExitCode::FAILURE
}

/// Answers one job.
fn run(job: &Job, [answer, artifact, output]: [OwnedFd; 3]) -> Result<(), String> {
    let answer =
        Channel::<CompilerToBroker, Never>::from_descriptor(answer).map_err(|error| error.to_string())?;
    let message = match compile(job, File::from(artifact), File::from(output)) {
        Ok(message) => message,
        Err(Refusal { code, mut reason }) => {
            reason.truncate(reason.floor_char_boundary(REASON_BYTES));
            CompilerToBroker::Refused { code: code.to_owned(), reason }
        }
    };
    answer.send(&message).map_err(|error| error.to_string())
}

fn compile(job: &Job, artifact: File, mut output: File) -> Result<CompilerToBroker, Refusal> {
    let unreadable = |_| Refusal::new("E-IO-003", "the bytes could not be read");
    let mut bytes = Vec::new();
    artifact.take(MAX_ARTIFACT + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_ARTIFACT {
        return Err(Refusal::new("E-IO-003", &format!("is larger than {MAX_ARTIFACT} bytes")));
    }
    start_threads();
    let (facts, code) = compiler::process(job, &bytes)?;
    if let Some(code) = code {
        output.write_all(&code).map_err(|error| {
            Refusal::new("E-IO-003", &format!("the cache entry could not be written: {error}"))
        })?;
    }
    Ok(CompilerToBroker::Compiled(Box::new(facts)))
}

/// Starts the compiler's threads with a number of our own: left to itself the library would look for the control group's
/// files, which are out of reach here. Where it cannot, compilation goes on with what there is.
fn start_threads() {
    let threads =
        rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count() as usize).min(MAX_THREADS);
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom};

    use ipc::edge::compiler::{Form, pack};
    use ipc::edge::host_broker::Role;

    use super::*;

    fn file(bytes: &[u8]) -> OwnedFd {
        let path = std::env::temp_dir().join(format!("compiler-{}-{}", std::process::id(), bytes.len()));
        let mut file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file.into()
    }

    #[test]
    fn a_job_is_answered_once_whatever_the_bytes() {
        let component =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/guests/file-tool/artifact/capsule.wasm");
        let good = pack(b"name: t\nversion: \"1\"\nruntime: tool\n", &std::fs::read(component).unwrap());
        for (bytes, compiled) in [(good.as_slice(), true), (b"junk", false)] {
            let (mut broker, answer) = ipc::pair::<Never, CompilerToBroker>().unwrap();
            let output = File::from(file(b""));
            let job = Job { name: "t".into(), role: Role::Tool, form: Form::Pack, code: true };
            let descriptors =
                [answer.into_descriptor().unwrap(), file(bytes), output.try_clone().unwrap().into()];
            run(&job, descriptors).unwrap();
            let message = broker.receive().unwrap().message;
            assert_eq!(matches!(message, CompilerToBroker::Compiled(_)), compiled, "{message:?}");
            let mut output = output;
            assert_eq!(output.seek(SeekFrom::End(0)).unwrap() > 0, compiled);
            assert!(matches!(broker.receive(), Err(ipc::ChannelError::Closed)));
        }
    }
}
