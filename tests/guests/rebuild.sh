#!/bin/sh
# Rebuilds the test components and records their hashes.
#
#     tests/guests/rebuild.sh [--with rustup|debian] [--into DIRECTORY]
#
# --into puts the components there and changes nothing here.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
way=
into=
while [ $# -gt 0 ]; do
    case $1 in
        --with) way="--with $2"; shift 2 ;;
        --into) into=$2; shift 2 ;;
        *) sed -n '4s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done

for guest in spin-driver fetch-driver file-tool policy-hook process-tool; do
    output=$here/$guest/artifact/capsule.wasm
    [ -z "$into" ] || output=$into/$guest.wasm
    # shellcheck disable=SC2086 # two words or none
    "$root/tools/build-component.sh" $way "$here" "$guest" "$output"
    [ -n "$into" ] || (cd "$here/$guest/artifact" && sha256sum capsule.wasm | tee capsule.wasm.sha256)
done
