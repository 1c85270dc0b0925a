#!/bin/sh
# Checks the committed components: that each is the one whose hash is recorded, that the WIT they
# are built against resolves, and, where the recorded toolchain is installed, that its source gives
# the very same bytes.
set -eu

tools=$(cd "$(dirname "$0")" && pwd)
cd "$tools/.."
target=${CARGO_TARGET_DIR:-target}/components
failed=

# Name, as the rebuild scripts call it under --into, and committed component.
components="stand-in examples/reporter/artifacts/stand-in/capsule.wasm
spin-driver tests/guests/spin-driver/artifact/capsule.wasm
fetch-driver tests/guests/fetch-driver/artifact/capsule.wasm
file-tool tests/guests/file-tool/artifact/capsule.wasm
policy-hook tests/guests/policy-hook/artifact/capsule.wasm
process-tool tests/guests/process-tool/artifact/capsule.wasm"

fail() {
    echo "FAILED: $1"
    failed=yes
}

while read -r name committed; do
    (cd "$(dirname "$committed")" && sha256sum --quiet --check capsule.wasm.sha256) ||
        fail "$name: $committed is not the component whose hash is recorded beside it"
done <<EOF
$components
EOF

cargo run --quiet --manifest-path tools/componentize/Cargo.toml --locked --target-dir "$target/tools" -- \
    check-wit wit >/dev/null || fail "the interfaces in wit/ do not resolve"

recorded=$(cat tools/built-with.txt)
if ! here=$(tools/build-component.sh --toolchain); then
    echo "NOT RUN: rebuilding the components: $here"
elif [ "$here" != "$recorded" ]; then
    echo "NOT RUN: rebuilding the components: they were built with $recorded, and here is $here"
else
    fresh=$(mktemp -d)
    trap 'rm -rf "$fresh"' EXIT
    for script in examples/reporter/rebuild.sh tests/guests/rebuild.sh; do
        "$script" --with debian --into "$fresh" >"$fresh/log" 2>&1 || { cat "$fresh/log"; fail "$script"; }
    done
    while read -r name committed; do
        cmp "$fresh/$name.wasm" "$committed" || fail "$name: its source does not give the committed component"
    done <<EOF
$components
EOF
fi
[ -z "$failed" ] && echo "components: ok"
