# Plain cargo calls, one process per call: cargo gives every package of one call the union of the features they
# ask for, so that building `compiler` beside `sandbox-host` would link a compiler into both.
# CARGO_TARGET_DIR is honoured by cargo itself and by everything here that looks for a binary.

CARGO ?= cargo
PROCESSES := broker door fileserver sandbox-host runner egress compiler

.PHONY: build demo test lint deny audit rebuild-guests

## The binaries as they are shipped, demonstrated and tested.
build:
	set -e; for process in $(PROCESSES); do $(CARGO) build --locked --release --package $$process; done

## A capsule from launch to clean end, with every answer shown (root).
demo: build
	scripts/demo.sh

## Unit tests of every package, then the system tests against the release binaries. Root runs all of them; without
## root, or where the kernel lacks something, each case that cannot run says NOT RUN and why.
test: build
	$(CARGO) build --locked --release --package hostile
	$(CARGO) test --locked --workspace --exclude sandbox-host --exclude compiler --exclude system-tests
	$(CARGO) test --locked --package sandbox-host
	$(CARGO) test --locked --package compiler
	$(CARGO) test --locked --package system-tests

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- --deny warnings

## What deny.toml says about dependencies: bans, licences, sources. Needs `cargo install --locked cargo-deny`.
deny:
	$(CARGO) deny --locked check bans licenses sources

## Known vulnerabilities. The database is fetched, which is not possible everywhere; the versions that matter most
## are also asserted by `make test` (tests/tests/supply_chain.rs).
audit:
	scripts/audit.sh

## The committed .wasm files from their sources.
rebuild-guests:
	set -e; for script in examples/*/rebuild.sh tests/guests/rebuild.sh tests/guests/*/rebuild.sh; do \
		if [ -x "$$script" ]; then echo "$$script"; "$$script"; fi; \
	done
