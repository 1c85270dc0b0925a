#!/usr/bin/env bash
# Boots a throw-away virtual machine (software emulation, no network), runs a payload in it as root, prints what it prints and
# ends with its status; 125 if the machine gave none.
#
#     tests/vm/boot.sh [--kernel 6.12|6.1] [--seconds N] [--memory MIB] PAYLOAD [OUTPUT]
#
# PAYLOAD is a folder that holds run.sh; OUTPUT is a folder that gets what run.sh put into $OUT, the journal and the console.
# Nothing a payload does to the machine survives it.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
kernel=6.12
seconds=300
memory=1024
while [ $# -gt 0 ]; do
    case $1 in
        --kernel) kernel=$2; shift 2 ;;
        --seconds) seconds=$2; shift 2 ;;
        --memory) memory=$2; shift 2 ;;
        -*) sed -n '5s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
        *) break ;;
    esac
done
[ -n "${1:-}" ] && [ -f "$1/run.sh" ] || { echo "vm: no payload with a run.sh" >&2; exit 2; }
payload=$(realpath "$1")
output=${2:-}
folder=$("$here/image.sh" --kernel "$kernel") || exit 125

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "$seconds" >"$work/seconds"
tar --owner=0 --group=0 -cf "$work/in" -C "$payload" . -C "$work" seconds || exit 125
truncate -s %512 "$work/in"
truncate -s 64M "$work/out"
: >"$work/printed"
disk() { echo "file=$1,format=raw,if=virtio,$2"; }
# Booting and ending take less than two minutes on a slow machine.
timeout -k 5 $((seconds + 120)) qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m "$memory" \
    -kernel "$folder/vmlinuz" -initrd "$folder/initrd" \
    -append "console=ttyS0 panic=-1 quiet mitigations=off systemd.show_status=0" \
    -drive "$(disk "$folder/disk" snapshot=on,cache=unsafe)" \
    -drive "$(disk "$work/in" readonly=on)" -drive "$(disk "$work/out" cache=unsafe)" \
    -nic none -nodefaults -no-user-config -display none -no-reboot -monitor none \
    -serial "file:$work/console" -serial "file:$work/printed" </dev/null >"$work/qemu" 2>&1
ended=$?

printed=$(tr -d '\r' <"$work/printed")
status=$(sed -n 's/^vm-payload-status \([0-9]*\)$/\1/p' <<<"$printed" | tail -1)
sed '/^vm-payload-status /d' <<<"$printed"
if [ -n "$output" ]; then
    mkdir -p "$output"
    tar -C "$output" -xf "$work/out" 2>/dev/null
    cp "$work/console" "$output/console.txt"
fi
if [ -z "$status" ]; then
    echo "vm: the machine gave no status (qemu ended with $ended); its console:" >&2
    tail -30 "$work/console" >&2
    cat "$work/qemu" >&2
    exit 125
fi
exit "$status"
