//! Whom does TLS trust? The host's own bundle and what the operator adds, read once at launch.
//!
//! The broker only sees that there is something of a certificate's outline in a file, so that a mistaken one is named at
//! launch; egress gets memory files and parses them.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use base64::Engine;
use ipc::edge::control::MAX_CERTIFICATE_FILES;

use crate::manifest::{Manifest, Scheme};
use crate::refusal::Refusal;

/// Where distributions keep their bundle; the first that exists is used.
const BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// The most bytes of one file.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// The trusted certificates as sealed memory files: none if nothing may be reached by TLS.
///
/// # Errors
/// `E-IO-*` naming an operator's file that cannot be read; `E-IO-001` if a gateway needs TLS and there is nothing to trust.
pub(crate) fn load(manifest: &Manifest, ca_files: &[PathBuf]) -> Result<Vec<OwnedFd>, Refusal> {
    if ca_files.len() >= usize::from(MAX_CERTIFICATE_FILES) {
        let most = MAX_CERTIFICATE_FILES - 1;
        return Err(Refusal::new("E-MAN-003", "--ca-file", format!("given more than {most} times"))
            .hint("put the certificates into one file"));
    }
    // An empty bundle, as some containers have, is none.
    let holds = |path: &&Path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() > 0);
    let bundle = BUNDLES.iter().map(Path::new).find(holds).filter(|_| may_use_tls(manifest));
    let mut loaded = Vec::new();
    if let Some(path) = bundle {
        loaded.push(read(path, path.display().to_string(), "repair the package ca-certificates")?);
    }
    for path in ca_files {
        loaded.push(read(path, format!("--ca-file {}", path.display()), "name a PEM file of certificates")?);
    }
    let needs = manifest
        .artifacts
        .iter()
        .any(|artifact| artifact.gateway.as_ref().is_some_and(|gateway| gateway.scheme == Scheme::Https));
    if loaded.is_empty() && needs {
        return Err(Refusal::new("E-IO-001", BUNDLES.join(", "), "no trusted certificates are on this host")
            .hint("install the package ca-certificates, or name a file with --ca-file"));
    }
    Ok(loaded)
}

/// Whether any destination may be spoken to by TLS: one that pins `http` may not.
fn may_use_tls(manifest: &Manifest) -> bool {
    let capabilities = &manifest.capabilities;
    let own = manifest.artifacts.iter().filter_map(|artifact| artifact.network_allow.as_ref());
    let mut rules = capabilities
        .network_allow
        .iter()
        .chain(capabilities.peer_fetch_allow.iter().flatten())
        .chain(own.flatten())
        .map(|rule| rule.scheme)
        .chain(
            manifest.artifacts.iter().filter_map(|artifact| Some(Some(artifact.gateway.as_ref()?.scheme))),
        );
    rules.any(|scheme| scheme != Some(Scheme::Http))
}

fn read(path: &Path, what: String, hint: &'static str) -> Result<OwnedFd, Refusal> {
    let failed = |error: std::io::Error| Refusal::io(&what, &error).hint(hint);
    let unusable = |reason: String| Refusal::new("E-IO-003", what.clone(), reason).hint(hint);
    let mut bytes = Vec::new();
    // Asked before opening: opening a fifo would wait for its writer.
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(unusable("it is not a regular file".into()));
    }
    File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(unusable(format!("it is larger than {MAX_BYTES} bytes")));
    }
    if !holds_a_certificate(&bytes) {
        return Err(unusable("it holds no certificate".into()));
    }
    ipc::memory::sealed_bytes("certificates", &bytes)
        .map_err(|error| Refusal::broken("certificates", error.to_string()))
}

/// Whether there is at least one PEM block that is base64 of one whole DER sequence. Nothing inside it is looked at.
fn holds_a_certificate(bytes: &[u8]) -> bool {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let text = String::from_utf8_lossy(bytes);
    text.split(BEGIN).skip(1).filter_map(|rest| rest.split_once(END)).any(|(block, _)| {
        let block: String = block.split_ascii_whitespace().collect();
        base64::engine::general_purpose::STANDARD.decode(block).is_ok_and(|der| is_a_sequence(&der))
    })
}

/// Whether bytes are a DER sequence of exactly their own length.
fn is_a_sequence(der: &[u8]) -> bool {
    let Some((0x30, rest)) = der.split_first().map(|(tag, rest)| (*tag, rest)) else { return false };
    match rest.split_first() {
        Some((length, content)) if *length < 0x80 => usize::from(*length) == content.len(),
        Some((form @ 0x81..=0x84, rest)) => {
            let (digits, content) = rest.split_at_checked(usize::from(form & 0x7f)).unwrap_or((&[], &[]));
            let length = digits.iter().fold(0_usize, |length, digit| length << 8 | usize::from(*digit));
            !content.is_empty() && length == content.len()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_outline_of_a_certificate_counts() {
        let block = |der: &[u8]| {
            let text = base64::engine::general_purpose::STANDARD.encode(der);
            format!("# a comment\n-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
        };
        let long: Vec<u8> = [&[0x30, 0x82, 0x01, 0x00][..], &[7; 256]].concat();
        for good in [block(&[0x30, 1, 0]), block(&long), block(&[0x31, 0]) + &block(&[0x30, 1, 0])] {
            assert!(holds_a_certificate(good.as_bytes()), "{good}");
        }
        let torn = block(&long).replace("Bwc", "B");
        for bad in [String::new(), "x".into(), block(&[]), block(&[0x30, 2, 0]), block(&[0, 0, 0]), torn] {
            assert!(!holds_a_certificate(bad.as_bytes()), "{bad}");
        }
        assert!(!holds_a_certificate(
            b"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQ==\n-----END PRIVATE KEY-----\n"
        ));
    }
}
