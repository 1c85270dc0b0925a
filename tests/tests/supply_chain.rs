//! What the binaries are made of: who links what, and which versions are the least we accept.
//!
//! `cargo deny` checks licences, sources and advisories; the rules here differ from process to process, or must hold
//! where the advisory database cannot be fetched.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test ends when something is not as it should be"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use system_tests::binaries::checkout;
use system_tests::not_run;

const PROCESSES: [&str; 7] = ["broker", "door", "fileserver", "sandbox-host", "runner", "egress", "compiler"];

fn cargo(arguments: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(checkout())
        .args(["--locked", "--offline"])
        .args(arguments)
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The names of all crates that are linked into a process.
fn linked(process: &str) -> BTreeSet<String> {
    let tree =
        cargo(&["tree", "--package", process, "--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    tree.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// Every package of the lock file with its versions.
fn locked() -> BTreeMap<String, Vec<Vec<u64>>> {
    let lock = fs::read_to_string(checkout().join("Cargo.lock")).expect("the lock file");
    let mut packages: BTreeMap<String, Vec<Vec<u64>>> = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let prefix = format!("{name} = \"");
            let value = package.lines().find_map(|line| line.strip_prefix(prefix.as_str())).expect("a field");
            value.trim_end_matches('"').to_owned()
        };
        packages.entry(field("name")).or_default().push(version(&field("version")));
    }
    packages
}

/// The numbers of a version; what follows them (`-rc.1`, `+1.0`) is left out.
fn version(text: &str) -> Vec<u64> {
    let numbers = text.split(['-', '+']).next().unwrap_or_default();
    numbers.split('.').map(|number| number.parse().expect("a number")).collect()
}

/// The least version we accept of a crate, and why.
const LEAST: [(&str, &str, &str); 6] = [
    ("wasmtime", "48.0.0", "the LTS line we follow, and the one whose WASI has the mend below"),
    (
        "wasmtime-wasi",
        "48.0.0",
        "GHSA-vqjp-4c8c-hfgg / RUSTSEC-2026-0269: a link with a trailing slash left the preopened directory",
    ),
    ("wasmtime-wasi-http", "48.0.0", "released with the two above"),
    ("rustls", "0.23.18", "RUSTSEC-2024-0336, RUSTSEC-2024-0399: a handshake without end, a panic"),
    ("ring", "0.17.12", "RUSTSEC-2025-0009: a panic where overflow is checked"),
    ("bincode", "2.0.1", "3.0.0 does not compile, 1 has no size limit on by default"),
];

#[test]
fn no_locked_version_is_below_the_least_we_accept() {
    let locked = locked();
    for (name, least, why) in LEAST {
        let versions = locked
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not in the lock file: take it from the list"));
        for found in versions {
            assert!(*found >= version(least), "{name} {found:?} is below {least}: {why}");
        }
    }
    assert_eq!(locked["bincode"], [version("2.0.1")], "exactly one bincode");
}

/// The components the tests run and the demo shows are the ones whose hashes are recorded; `tools/check-components.sh` builds
/// them again where their toolchain is installed.
#[test]
fn every_committed_component_has_the_hash_that_is_recorded_beside_it() {
    let mut checked = 0;
    for folder in ["examples/reporter/artifacts", "tests/guests"] {
        for entry in fs::read_dir(checkout().join(folder)).unwrap().flatten() {
            let places = [entry.path(), entry.path().join("artifact")];
            for place in places.iter().filter(|place| place.join("capsule.wasm").is_file()) {
                let output = Command::new("sha256sum")
                    .args(["--check", "--strict", "capsule.wasm.sha256"])
                    .current_dir(place)
                    .output()
                    .unwrap();
                assert!(output.status.success(), "{}: {output:?}", place.display());
                checked += 1;
            }
        }
    }
    assert!(checked >= 6, "{checked} components");
}

#[test]
fn versions_are_compared_as_numbers() {
    assert!(version("48.0.0") > version("9.10.0"));
    assert!(version("48.0.8+1.2") > version("48.0.0-rc.1"));
}

#[test]
fn broker_links_neither_http_nor_wasm_nor_archives() {
    let broker = linked("broker");
    for name in &broker {
        let refused = ["hyper", "h2", "httparse", "wasmtime", "cranelift", "wasmparser", "winch", "zip"];
        assert!(!refused.iter().any(|prefix| name.starts_with(prefix)), "broker links {name}");
    }
}

#[test]
fn wasmtime_is_linked_into_sandbox_host_and_compiler_alone() {
    for process in PROCESSES {
        let found = linked(process).iter().any(|name| name.starts_with("wasmtime"));
        let allowed = matches!(process, "sandbox-host" | "compiler");
        assert!(allowed || !found, "{process} links wasmtime");
    }
}

/// `cranelift-entity`, `-bitset` and `-bforest` are containers that Wasmtime's runtime uses; they generate no code.
#[test]
fn sandbox_host_links_nothing_that_generates_code() {
    for name in linked("sandbox-host") {
        let generates = [
            "cranelift-codegen",
            "cranelift-frontend",
            "cranelift-native",
            "winch",
            "wasmtime-internal-cranelift",
            "wasmtime-internal-winch",
            "regalloc2",
        ];
        assert!(!generates.iter().any(|prefix| name.starts_with(prefix)), "sandbox-host links {name}");
    }
}

/// The same of the binary itself: features of packages built in one cargo call add up, which no tree of one package shows.
#[test]
fn the_built_sandbox_host_holds_no_symbol_of_a_compiler() {
    let binaries = std::env::var_os("CAPSULE_BROKER_BIN").map_or_else(
        || {
            std::env::current_exe()
                .expect("our path")
                .ancestors()
                .nth(3)
                .expect("a target directory")
                .join("release")
        },
        PathBuf::from,
    );
    let holds = |binary: &str, symbol: &str| {
        let bytes = fs::read(binaries.join(binary)).ok()?;
        Some(bytes.windows(symbol.len()).any(|window| window == symbol.as_bytes()))
    };
    let symbol = "cranelift_codegen";
    let Some(found) = holds("sandbox-host", symbol) else {
        not_run!("no release binaries here: run `make build`")
    };
    assert!(!found, "sandbox-host holds {symbol}");
    // If the symbol could not be found where it must be, its absence would mean nothing.
    if locked().contains_key("wasmtime") {
        assert_eq!(holds("compiler", symbol), Some(true), "{symbol} is not even in the compiler");
    }
}

#[test]
fn hyper_is_asked_for_by_door_and_egress_alone() {
    for (package, dependencies) in direct_dependencies(None) {
        let asks = dependencies.iter().any(|name| name == "hyper" || name == "hyper-util");
        assert!(!asks || matches!(package.as_str(), "door" | "egress"), "{package} asks for hyper");
    }
}

#[test]
fn tls_is_linked_into_egress_alone() {
    let tls = [
        "rustls",
        "tokio-rustls",
        "hyper-rustls",
        "webpki",
        "native-tls",
        "openssl",
        "boring",
        "s2n",
        "ring",
    ];
    let linked_of = |process: &str| {
        let mut names = linked(process);
        names.retain(|name| tls.iter().any(|prefix| name.starts_with(prefix)));
        names.into_iter().collect::<Vec<_>>()
    };
    for process in PROCESSES.into_iter().filter(|process| *process != "egress") {
        assert_eq!(linked_of(process), [""; 0], "{process}");
    }
    // One implementation with one provider of cryptography, and no authority that is compiled in.
    assert_eq!(linked_of("egress"), ["ring", "rustls", "rustls-pki-types", "rustls-webpki", "tokio-rustls"]);
}

/// Whoever can compute the MAC can mint handles.
#[test]
fn hmac_is_asked_for_by_broker_alone() {
    for (package, dependencies) in direct_dependencies(None) {
        assert!(package == "broker" || !dependencies.contains("hmac"), "{package} asks for hmac");
    }
}

#[test]
fn no_process_depends_on_another_and_ipc_and_confine_do_not_know_each_other() {
    for (package, dependencies) in direct_dependencies(None) {
        for process in PROCESSES {
            assert!(!dependencies.contains(process), "{package} depends on {process}");
        }
        let stranger = match package.as_str() {
            "ipc" => "confine",
            "confine" => "ipc",
            _ => continue,
        };
        assert!(!dependencies.contains(stranger), "{package} depends on {stranger}");
    }
}

#[test]
fn passfd_is_used_in_tests_only() {
    for (package, dependencies) in direct_dependencies(Some("dev")) {
        assert!(package == "ipc" || !dependencies.contains("passfd"), "{package} tests with passfd");
    }
    for (package, dependencies) in direct_dependencies(None) {
        assert!(!dependencies.contains("passfd"), "{package} depends on passfd");
    }
}

/// What each package of the workspace asks for itself: normal dependencies, or those of the given kind.
fn direct_dependencies(kind: Option<&str>) -> BTreeMap<String, BTreeSet<String>> {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version", "1"])).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let read = |package: &Value| {
        let asked = package["dependencies"].as_array().expect("dependencies").iter();
        let asked = asked.filter(|dependency| dependency["kind"].as_str() == kind);
        let names = asked.map(|dependency| dependency["name"].as_str().expect("a name").to_owned()).collect();
        (package["name"].as_str().expect("a name").to_owned(), names)
    };
    let read: BTreeMap<_, _> = packages.iter().map(read).collect();
    assert!(PROCESSES.iter().all(|process| read.contains_key(*process)), "{:?}", read.keys());
    read
}

#[test]
fn bincode_is_named_in_one_file() {
    let mut named = Vec::new();
    for folder in PROCESSES
        .iter()
        .map(|process| match *process {
            "compiler" => "sandbox-host/compiler",
            process => process,
        })
        .chain(["ipc", "confine", "role"])
    {
        let mut sources = Vec::new();
        rust_sources(&checkout().join(folder).join("src"), &mut sources);
        assert!(!sources.is_empty(), "{folder} has no sources");
        for source in sources {
            let text = fs::read_to_string(&source).expect("a source file");
            let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
            if code.into_iter().any(|line| line.contains("bincode")) {
                named.push(source.strip_prefix(checkout()).expect("below").to_owned());
            }
        }
    }
    assert_eq!(named, [Path::new("ipc/src/codec.rs")]);
}

fn rust_sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            rust_sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// T37 of the cases: a handle is made and redeemed by the runtime's own tools, and no interface offers a component to do either.
#[test]
fn no_interface_lets_a_component_mint_or_redeem() {
    let mut folders = vec![checkout().join("wit")];
    let mut read = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "wit") {
                let text = std::fs::read_to_string(&path).unwrap().to_lowercase();
                for word in ["mint", "redeem", "share-file", "fetch-peer-file", "peer-handle"] {
                    assert!(!text.contains(word), "{} speaks of {word}", path.display());
                }
                read += 1;
            }
        }
    }
    assert!(read > 3, "{read} files of interfaces");
}
