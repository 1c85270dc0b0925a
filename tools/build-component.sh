#!/bin/sh
# Builds one guest component from its Rust source.
#
#     tools/build-component.sh [--with rustup|debian] CRATE-DIRECTORY PACKAGE OUTPUT
#     tools/build-component.sh --toolchain
#
# Without --with it takes the first way that works here:
#   rustup   the target wasm32-wasip2, whose linker writes a component itself; adds the target to the
#            active toolchain if it is not there
#   debian   Debian's rustc-web, cargo-web, libstd-rust-web-dev, rust-web-src and lld-19: std is built
#            from source for wasm32-unknown-unknown, then tools/componentize wraps the module
# The committed components come from the second. Its output depends on source, lock files and
# toolchain alone, not on where the checkout or the target directory lies. --toolchain prints that
# toolchain, or says what is missing and fails; tools/built-with.txt records the one last used.
set -eu

missing_for_debian() {
    for file in /usr/bin/rustc /usr/bin/cargo /usr/bin/wasm-ld-19; do
        [ -x "$file" ] || { echo "$file is not installed"; return; }
    done
    [ -d "$(/usr/bin/rustc --print sysroot)/lib/rustlib/src/rust/library/std" ] ||
        echo "the source of std (rust-web-src) is not installed"
}

tools=$(cd "$(dirname "$0")" && pwd)
if [ "${1-}" = --toolchain ]; then
    why=$(missing_for_debian)
    [ -z "$why" ] || { echo "$why"; exit 1; }
    echo "$(/usr/bin/rustc --version); $(/usr/bin/wasm-ld-19 --version)"
    exit 0
fi
way=any
if [ "${1-}" = --with ]; then
    way=$2
    shift 2
fi
[ $# -eq 3 ] || { sed -n '4,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
crate=$(cd "$1" && pwd)
package=$2
output=$(cd "$(dirname "$3")" && pwd)/$(basename "$3")
module=$(echo "$package" | tr - _).wasm
target=${CARGO_TARGET_DIR:-$tools/../target}/components
mkdir -p "$target"
target=$(cd "$target" && pwd)

build_with_rustup() {
    rustup target add wasm32-wasip2 &&
        cargo build --manifest-path "$crate/Cargo.toml" --package "$package" --locked --release \
            --target wasm32-wasip2 --target-dir "$target/rustup" &&
        cp "$target/rustup/wasm32-wasip2/release/$module" "$output"
}

build_with_debian() {
    why=$(missing_for_debian)
    [ -z "$why" ] || { echo "build-component: $why" >&2; return 1; }
    # The toolchain is named by path, so that the one the project is built with stays out of it.
    # Panic locations would carry paths of this machine, hence without.
    env PATH=/usr/bin:/bin RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 \
        RUSTFLAGS="-C linker=wasm-ld-19 -Zlocation-detail=none" \
        CARGO_PROFILE_RELEASE_TRIM_PATHS=all CARGO_UNSTABLE_TRIM_PATHS=true \
        /usr/bin/cargo build --manifest-path "$crate/Cargo.toml" --package "$package" --locked --release \
        -Zbuild-std=std,panic_abort --target wasm32-unknown-unknown --target-dir "$target/debian" &&
        cargo run --quiet --manifest-path "$tools/componentize/Cargo.toml" --locked \
            --target-dir "$target/tools" -- \
            encode "$target/debian/wasm32-unknown-unknown/release/$module" "$output"
}

case $way in
    rustup) build_with_rustup ;;
    debian) build_with_debian ;;
    any)
        if command -v rustup >/dev/null && build_with_rustup; then
            :
        else
            build_with_debian
        fi
        ;;
    *) echo "build-component: unknown way '$way'" >&2; exit 2 ;;
esac
