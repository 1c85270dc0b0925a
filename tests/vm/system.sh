#!/usr/bin/env bash
# Runs system tests in the virtual machine, where limits are real: cgroup v2 with all its controllers, under systemd.
#
#     tests/vm/system.sh [--kernel 6.12|6.1] [--seconds N] [--output FOLDER] [FILTER...]
#
# The binaries are those of `make build` and of `cargo test --no-run`; both are built first. Without a FILTER all tests run, which
# takes long: the processor is emulated.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
checkout=$(cd "$here/../.." && pwd)
kernel=6.12
seconds=900
output=
while [ $# -gt 0 ]; do
    case $1 in
        --kernel) kernel=$2; shift 2 ;;
        --seconds) seconds=$2; shift 2 ;;
        --output) output=$2; shift 2 ;;
        -*) sed -n '4s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
        *) break ;;
    esac
done

cd "$checkout"
tests=$(cargo test --locked --package system-tests --test system --no-run --message-format=json 2>/dev/null |
    sed -n 's/.*"name":"system".*"executable":"\([^"]*\)".*/\1/p' | tail -1)
[ -n "$tests" ] || { echo "vm: the system tests do not build" >&2; exit 1; }
release=$(dirname "$(dirname "$(dirname "$tests")")")/release

payload=$(mktemp -d)
trap 'rm -rf "$payload"' EXIT
mkdir -p "$payload/bin" "$payload/checkout/tests"
for binary in broker door fileserver sandbox-host runner egress compiler client hostile capsule-probe; do
    [ ! -e "$release/$binary" ] || cp "$release/$binary" "$payload/bin/"
done
strip -o "$payload/system" "$tests"
cp -R examples "$payload/checkout/examples"
cp -R tests/guests "$payload/checkout/tests/guests"
cp -R docs scripts Cargo.lock "$payload/checkout/"
# The tests look for the checkout where they were built.
cat >"$payload/run.sh" <<END
set -u
mkdir -p '$(dirname "$checkout")'
ln -s /payload/checkout '$checkout'
export CAPSULE_BROKER_BIN=/payload/bin TMPDIR=/var/tmp
uname -r
echo "cgroup v2: \$(cat /sys/fs/cgroup/cgroup.controllers)"
echo "systemd: \$(systemctl --version | head -1), pid 1 is \$(cat /proc/1/comm)"
echo "security modules: \$(cat /sys/kernel/security/lsm)"
for needed in landlock apparmor; do
    grep -qw "\$needed" /sys/kernel/security/lsm || { echo "vm: \$needed is not active"; exit 1; }
done
exec ./system --test-threads 1 $*
END
"$here/boot.sh" --kernel "$kernel" --seconds "$seconds" --memory 2048 "$payload" ${output:+"$output"}
