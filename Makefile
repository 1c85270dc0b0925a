# Plain cargo calls, one process per call: cargo gives every package of one call the union of the features they
# ask for, so that building `compiler` beside `sandbox-host` would link a compiler into both.
# CARGO_TARGET_DIR is honoured by cargo itself and by everything here that looks for a binary.

CARGO ?= cargo
PROCESSES := broker door fileserver sandbox-host runner egress compiler
# What people look at sessions with.
OTHERS := client

# Optimised as a whole where that is quick and every request passes through it: a tenth more requests on the file planes.
# Wasmtime is no part of these three.
WHOLE := broker door fileserver
WHOLE_PROFILE := CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1

.PHONY: build demo test conformance conformance-vm bench-planes bench-programs lint deny audit rebuild-guests

## The binaries as they are shipped, demonstrated and tested.
build:
	set -e; for process in $(WHOLE); do $(WHOLE_PROFILE) $(CARGO) build --locked --release --package $$process; done
	set -e; for process in $(filter-out $(WHOLE),$(PROCESSES)) $(OTHERS); do \
		$(CARGO) build --locked --release --package $$process; \
	done

## A capsule from launch to clean end, with every answer shown (root).
demo: build
	scripts/demo.sh

## Unit tests of every package, then the system tests against the release binaries. Root runs all of them; without
## root, or where the kernel lacks something, each case that cannot run says NOT RUN and why.
test: build
	$(CARGO) build --locked --release --package hostile
	$(CARGO) build --locked --release --package capsule-probe
	$(CARGO) test --locked --workspace --exclude sandbox-host --exclude compiler --exclude system-tests
	$(CARGO) test --locked --package sandbox-host
	$(CARGO) test --locked --package compiler
	$(CARGO) test --locked --package system-tests

## Every way out a program may try, from inside, per class: case, class, expected, seen (root). CLASS=sealed or scoped for
## one alone. Exit status 3 if anything got out, 2 where the host cannot give the class.
conformance: build
	$(CARGO) build --locked --release --package capsule-probe
	$(CARGO) run --locked --quiet --package system-tests --bin conformance -- $(CLASS)

## The same, and limits with real controllers, in a virtual machine with systemd and AppArmor, on two kernels (root for the first
## time, which makes the machine; qemu-system-x86 and mmdebstrap installed; software emulation: 5 minutes a kernel).
conformance-vm: build
	$(CARGO) build --locked --release --package hostile
	$(CARGO) build --locked --release --package capsule-probe
	set -e; for kernel in 6.12 6.1; do \
		tests/vm/system.sh --kernel $$kernel --seconds 1800 conformance:: limits:: classes:: ordinary_user:: grants::; \
	done

## Both file planes beside nginx and beside a plain one-process server, as ratios (root; wrk and nginx installed).
## BENCH takes options: make bench-planes BENCH="--seconds 1 --only get-4k-8". See docs/performance.md.
bench-planes: build
	$(CARGO) build --locked --profile measure --package system-tests --bins
	$(CARGO) run --locked --quiet --profile measure --package system-tests --bin bench-planes -- $(BENCH)

## What a tool waits for a program, beside bwrap, a bare start and plain pipes and sockets (root; bubblewrap and perl installed).
bench-programs: build
	$(CARGO) build --locked --profile measure --package system-tests --bins
	$(CARGO) run --locked --quiet --profile measure --package system-tests --bin bench-programs -- $(BENCH)

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
