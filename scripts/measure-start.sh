#!/bin/bash
# Measures a start of the example capsule with its components compiled: from exec of the broker to the ready line, to the
# first agent card read over HTTP, and the memory of each process at rest. Needs root and `make build`.
#
#     scripts/measure-start.sh [RUNS]
#
# Machines are noisy: compare medians of one run with each other, not with another machine's.
set -euo pipefail
cd "$(dirname "$0")/.."

runs=${1:-9}
binaries=${CARGO_TARGET_DIR:-target}/release
scratch=$(mktemp -d /var/tmp/measure-start.XXXXXX)
chmod 755 "$scratch"
trap 'rm -rf "$scratch"' EXIT
cp -r examples/reporter/work "$scratch/work"
chown -R 61234:61234 "$scratch/work"
accept=()
for controller in memory pids cpu; do
  grep -qw "$controller" /sys/fs/cgroup/cgroup.controllers 2>/dev/null || accept=(--accept-missing cgroup-limits)
done

milliseconds() { local t=${EPOCHREALTIME/./}; echo $(((t - $1) / 1000)); }
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] " (" v[1] " to " v[NR] ")" }'; }

ready_times=() card_times=()
for ((run = 0; run <= runs; run++)); do
  mkfifo "$scratch/ready"
  started=${EPOCHREALTIME/./}
  "$binaries/broker" --manifest examples/reporter/murmur.yaml --workdir "$scratch/work" --json "${accept[@]}" \
    --state-dir "$scratch/state" --cache-dir "$scratch/cache" --run-dir "$scratch/run" >"$scratch/ready" 2>/dev/null &
  broker=$!
  read -r line <"$scratch/ready"
  ready=$(milliseconds "$started")
  port=${line#*127.0.0.1:}
  port=${port%%\"*}
  exec 9<>"/dev/tcp/127.0.0.1/$port"
  printf 'GET /.well-known/agent-card.json HTTP/1.1\r\nHost: x\r\n\r\n' >&9
  read -r status <&9
  card=$(milliseconds "$started")
  exec 9>&-
  case $status in *" 200 "*) ;; *) echo "the card answered: $status" >&2; exit 1 ;; esac
  # The first start compiles and is not counted.
  if [ "$run" -gt 0 ]; then ready_times+=("$ready") card_times+=("$card"); fi
  if [ "$run" -eq "$runs" ]; then
    echo "memory at rest, kB: resident, of it not shared"
    for pid in $broker $(cat "/proc/$broker/task/$broker/children"); do
      printf '  %-13s %7s %7s\n' "$(basename "$(readlink "/proc/$pid/exe")")" \
        "$(awk '/^Rss:/ { print $2 }' "/proc/$pid/smaps_rollup")" \
        "$(awk '/^Private_(Clean|Dirty):/ { sum += $2 } END { print sum }' "/proc/$pid/smaps_rollup")"
    done
  fi
  kill -TERM "$broker"
  wait "$broker"
  rm "$scratch/ready"
done
echo "start to ready line, ms: median $(printf '%s\n' "${ready_times[@]}" | median)"
echo "start to first card, ms: median $(printf '%s\n' "${card_times[@]}" | median)"
