//! Turns a core module into a component, and checks that the project's WIT resolves.
//!
//! A module built for `wasm32-unknown-unknown` carries its world in custom sections that the
//! bindings left there; this reads them, wraps the module accordingly and validates the result.
//! The output depends on the module alone, so the same module gives the same bytes.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use wit_component::ComponentEncoder;
use wit_parser::Resolve;

const USAGE: &str = "usage: componentize encode MODULE COMPONENT\n       componentize check-wit DIRECTORY";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["encode", module, component] => encode(Path::new(module), Path::new(component)),
        ["check-wit", directory] => check_wit(Path::new(directory)),
        _ => bail!(USAGE),
    }
}

fn encode(module: &Path, component: &Path) -> Result<()> {
    let bytes = std::fs::read(module).with_context(|| module.display().to_string())?;
    let encoded = ComponentEncoder::default().validate(true).module(&bytes)?.encode()?;
    std::fs::write(component, encoded).with_context(|| component.display().to_string())
}

/// Resolves every package below `directory` and names its worlds and interfaces.
fn check_wit(directory: &Path) -> Result<()> {
    let mut resolve = Resolve::default();
    resolve.push_path(directory).with_context(|| directory.display().to_string())?;
    ensure!(resolve.worlds.iter().next().is_some(), "{}: no world", directory.display());
    for (_, package) in resolve.packages.iter() {
        for interface in package.interfaces.keys() {
            println!("interface {}", package.name.interface_id(interface));
        }
        for world in package.worlds.keys() {
            println!("world {}", package.name.interface_id(world));
        }
    }
    Ok(())
}
