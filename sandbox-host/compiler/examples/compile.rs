//! Compiles a component file (binary or text) to native code, outside of a session: `compile <component> <output>`. Tests of
//! sandbox-host make their code with it, so that no test links a compiler into that package. A `murmur.yaml` beside the
//! component says what it is; without one it is a tool.

use std::path::Path;
use std::process::ExitCode;

use ipc::edge::compiler::{Form, Job, pack};
use ipc::edge::host_broker::Role;

const TOOL: &str = "name: component\nversion: \"0\"\nruntime: tool\n";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [component, output] = arguments.as_slice() else {
        eprintln!("usage: compile <component.wasm> <output>");
        return ExitCode::from(2);
    };
    match compile(component, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("compile: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn compile(component: &str, output: &str) -> Result<(), String> {
    let beside = Path::new(component).with_file_name("murmur.yaml");
    let manifest = std::fs::read_to_string(beside).unwrap_or_else(|_| TOOL.to_owned());
    let is = |word: &str| manifest.lines().any(|line| line.strip_prefix("runtime: ") == Some(word));
    let role = match () {
        () if is("hook") => Role::Hook,
        () if is("driver") => Role::Driver,
        () => Role::Tool,
    };
    let component = wat::parse_file(component).map_err(|error| format!("{component}: {error}"))?;
    let job = Job { name: "component".into(), role, form: Form::Pack, code: true };
    let bytes = pack(manifest.as_bytes(), &component);
    let (_facts, code) = compiler::process(&job, &bytes).map_err(|refusal| refusal.to_string())?;
    std::fs::write(output, code.unwrap_or_default()).map_err(|error| format!("{output}: {error}"))
}
