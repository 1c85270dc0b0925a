#!/usr/bin/env bash
# The reporter example from launch to clean end: prints the command it runs, what is served afterwards, and fails
# if the broker does not end well or leaves a process behind. Called by `make demo`, which builds first.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
broker=${CAPSULE_BROKER_BIN:-$target/release}/broker
manifest=examples/reporter/murmur.yaml
task="Report on inputs/"
# The work folder belongs to somebody who is not root. The broker shows the folder to its processes through mounts
# that map its owner to theirs; overlayfs, on which containers live, refuses such mounts, and then those processes
# run as the owner, which must not be root. Nobody needs to have this number.
owner=61234
patience=120 # seconds in all: a first launch compiles the example's component

fail() {
    echo "demo: $*" >&2
    if [ -s "$temporary/stderr" ]; then sed 's/^/    /' "$temporary/stderr" >&2; fi
    exit 1
}

[ "$(id -u)" = 0 ] || { echo "demo: needs root: the broker makes namespaces, mounts and users of its own" >&2; exit 1; }
[ -x "$broker" ] || { echo "demo: $broker is missing: run 'make build'" >&2; exit 1; }

temporary=$(mktemp -d)
pid=
cleanup() {
    if [ -n "$pid" ]; then kill -KILL "$pid" 2>/dev/null || true; fi
    rm -rf "$temporary"
}
trap cleanup EXIT
chmod 0755 "$temporary"
cp -R examples/reporter/work "$temporary/work"
chown -R "$owner:$owner" "$temporary/work"

arguments=(--manifest "$manifest" --workdir "$temporary/work" --task "$task")
missing=$(scripts/cgroup-flags.sh | paste -sd ' ')
if [ -n "$missing" ]; then
    echo "This host offers no cgroup v2 controller for: $missing. The broker refuses to run programs without limits"
    echo "unless it is told to, hence --accept-missing cgroup-limits:"
    arguments+=(--accept-missing cgroup-limits)
fi
# The demo keeps its records in its own folder; without these flags they go below /var/lib, /var/cache and /run.
arguments+=(--state-dir "$temporary/state" --cache-dir "$temporary/cache" --run-dir "$temporary/run")

printf '\n    broker'
printf ' %q' "${arguments[@]}"
printf '\n\n'

mkfifo "$temporary/ready" "$temporary/banner"
# Not as a process substitution: its process would be a child of the broker.
tee "$temporary/stderr" <"$temporary/banner" >&2 &
banner=$!
"$broker" "${arguments[@]}" >"$temporary/ready" 2>"$temporary/banner" &
pid=$!
exec 3<"$temporary/ready"
IFS= read -r -t "$patience" ready <&3 || fail "the broker printed no ready line"
echo "$ready"

field() { printf '%s' "$ready" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
url=$(field url)
session=$(field session_id)
address=${url#http://}
address=${address%/}
port=${address##*:}
host=${address%:*}
host=${host#[}
host=${host%]}
[ -n "$port" ] && [ -n "$host" ] && [ -n "$session" ] || fail "cannot read the ready line"

# One request, one answer, over bash's own sockets: head and body as the broker sent them.
request() {
    local descriptor
    exec {descriptor}<>"/dev/tcp/$host/$port"
    printf 'GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$1" "$address" >&"$descriptor"
    timeout 10 cat <&"$descriptor"
    exec {descriptor}>&-
}
body() { sed '1,/^\r$/d'; }

# The number of finished tasks is told by the listing and by nothing that calls back, so it is asked for.
deadline=$((SECONDS + patience))
until request /resources/files | body | grep -q '"generation":1[,}]'; do
    kill -0 "$pid" 2>/dev/null || fail "the broker ended before the task did"
    [ "$SECONDS" -lt "$deadline" ] || fail "the task did not end within $patience seconds"
    sleep 0.05
done

echo
echo "The task is done. GET $url/resources/files answers:"
request /resources/files | body
echo
echo
echo "GET $url/resources/files/report.md answers:"
request /resources/files/report.md | tr -d '\r'

# Other processes come and go meanwhile, which grep reports in its status.
children() { { grep -ls "^PPid:[[:space:]]*$1\$" /proc/[0-9]*/status || true; } | cut -d/ -f3 | paste -sd ' '; }
processes=$(children "$pid")
echo "Stopping the broker ($pid) and its processes ($processes) with SIGTERM."
kill -TERM "$pid"
status=0
wait "$pid" || status=$?
ended=$pid
pid=
# Ends when the last process that could write to the broker's standard error has.
wait "$banner"
[ "$status" = 0 ] || fail "the broker ended with status $status"

left=
for process in $ended $processes; do
    if [ -e "/proc/$process" ]; then left="$left process $process,"; fi
done
if grep -q -e "$session" -e "$temporary" /proc/self/mountinfo; then left="$left a mount,"; fi
if find /sys/fs/cgroup -type d -name "*${session#ses_}*" 2>/dev/null | grep -q .; then left="$left a cgroup,"; fi
if find "$temporary/run" -name "*$session*" 2>/dev/null | grep -q .; then left="$left its run directory,"; fi
[ -z "$left" ] || fail "left behind:$left"
echo "It ended with status 0 and left nothing but the work folder and its records."
