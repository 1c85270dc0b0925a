//! Compiles a component file (binary or text) to native code, outside of a session: `compile <component> <output>`. Tests of
//! sandbox-host make their code with it, so that no test links a compiler into that package.

use std::process::ExitCode;

use ipc::edge::compiler::{Form, Job, pack};
use ipc::edge::host_broker::Role;

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
    let component = wat::parse_file(component).map_err(|error| format!("{component}: {error}"))?;
    let job = Job { name: "component".into(), role: Role::Tool, form: Form::Pack, code: true };
    let bytes = pack(b"name: component\nversion: \"0\"\nruntime: tool\n", &component);
    let (_facts, code) = compiler::process(&job, &bytes).map_err(|refusal| refusal.to_string())?;
    std::fs::write(output, code.unwrap_or_default()).map_err(|error| format!("{output}: {error}"))
}
