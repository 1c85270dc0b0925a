#!/usr/bin/env bash
# Checks Cargo.lock against the advisory database, or says why it could not.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! cargo deny --version >/dev/null 2>&1; then
    echo "NOT RUN: audit: cargo-deny is not installed (cargo install --locked cargo-deny)"
    exit 0
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! cargo deny fetch db >"$log" 2>&1; then
    echo "NOT RUN: audit: the advisory database could not be fetched: $(tail -n 1 "$log")"
    exit 0
fi
cargo deny --locked check --disable-fetch advisories
