#!/bin/sh
# Rebuilds the reporter's driver from stand-in/ and records its hash.
#
#     examples/reporter/rebuild.sh [--with rustup|debian] [--into DIRECTORY]
#
# --into puts the component there and changes nothing here.
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

if [ -n "$into" ]; then
    # shellcheck disable=SC2086 # two words or none
    exec "$root/tools/build-component.sh" $way "$here/stand-in" stand-in "$into/stand-in.wasm"
fi
# shellcheck disable=SC2086 # two words or none
"$root/tools/build-component.sh" $way "$here/stand-in" stand-in "$here/artifacts/stand-in/capsule.wasm"
cd "$here/artifacts/stand-in"
sha256sum capsule.wasm | tee capsule.wasm.sha256
