#!/bin/bash
# Prints what the kernel says about the processes of a running session: who they are, what confines them, which namespaces
# they are in and which descriptors they hold. Reads /proc only; run it as root.
#
#     scripts/inspect-session.sh BROKER_PID
#
# docs/architecture.md shows its output for the example capsule; a test asserts the rules in it.
set -euo pipefail

broker=${1:?usage: inspect-session.sh BROKER_PID}
[ -r "/proc/$broker/status" ] || { echo "no process $broker" >&2; exit 1; }
children=$(cat "/proc/$broker/task/$broker/children")
all="$broker $children"

field() { sed -n "s/^$2:[[:space:]]*//p" "/proc/$1/status" | tr '\t' ' '; }
name() { if [ "$1" = "$broker" ]; then echo broker; else tr '\0' ' ' <"/proc/$1/cmdline" | awk '{print $1; exit}'; fi; }
inode() { readlink "/proc/$1/ns/$2" | tr -dc 0-9; }

echo "# processes"
printf '%-13s %-7s %-11s %-11s %-6s %s\n' name threads uid gid groups rss-kB
for pid in $all; do
  printf '%-13s %-7s %-11s %-11s %-6s %s\n' "$(name "$pid")" "$(field "$pid" Threads)" \
    "$(field "$pid" Uid | cut -d' ' -f1)" "$(field "$pid" Gid | cut -d' ' -f1)" \
    "$(field "$pid" Groups | wc -w)" "$(field "$pid" VmRSS | cut -d' ' -f1)"
done

echo
echo "# confinement (worst of all threads)"
printf '%-13s %-12s %-8s %-17s %-17s %s\n' name no_new_privs seccomp permitted bounding dumpable
for pid in $all; do
  nnp=1 sec=2
  for task in "/proc/$pid/task"/*; do
    n=$(sed -n 's/^NoNewPrivs:[[:space:]]*//p' "$task/status"); s=$(sed -n 's/^Seccomp:[[:space:]]*//p' "$task/status")
    [ "$n" -lt "$nnp" ] && nnp=$n
    [ "$s" -lt "$sec" ] && sec=$s
  done
  # /proc/<pid> of a process that is not dumpable belongs to root.
  dump=no; [ "$(stat -c %u "/proc/$pid/environ")" != 0 ] && dump=yes
  [ "$pid" = "$broker" ] && dump=-
  printf '%-13s %-12s %-8s %-17s %-17s %s\n' "$(name "$pid")" "$nnp" "$sec" "$(field "$pid" CapPrm)" "$(field "$pid" CapBnd)" "$dump"
done

echo
echo "# namespaces (= the broker's own; equal letters are one namespace)"
printf '%-13s %-4s %-4s %-4s %-4s %-4s %-4s\n' name user mnt pid ipc uts net
declare -A letter=(); next=0; letters=ABCDEFGHIJKLMNOPQRSTUVWXYZ
for pid in $all; do
  row=$(printf '%-13s' "$(name "$pid")")
  for kind in user mnt pid ipc uts net; do
    # For `pid` the namespace its children are in is the one it was born into: a role makes none of its own.
    this=$(inode "$pid" "$kind"); own=$(inode "$broker" "$kind")
    if [ "$this" = "$own" ]; then mark="="; else
      key=$kind:$this
      if [ -z "${letter[$key]:-}" ]; then letter[$key]=${letters:next:1}; next=$((next + 1)); fi
      mark=${letter[$key]}
    fi
    row+=$(printf ' %-4s' "$mark")
  done
  echo "$row"
done

echo
echo "# descriptors"
for pid in $all; do
  echo "$(name "$pid"):"
  for fd in $(ls "/proc/$pid/fd" | sort -n); do
    target=$(readlink "/proc/$pid/fd/$fd" 2>/dev/null || continue)
    case $target in
      socket:*) what=socket
        line=$(grep -F " ${target//[^0-9]/} " "/proc/$pid/net/unix" 2>/dev/null | head -1 || true)
        if [ -n "$line" ]; then what="socket unix $(awk '{ if ($5 == "0005") print "seqpacket"; else print $5 }' <<<"$line")"
        elif grep -qE "[[:space:]]${target//[^0-9]/}[[:space:]]" "/proc/$broker/net/tcp" "/proc/$broker/net/tcp6" 2>/dev/null; then what="socket tcp"; fi ;;
      pipe:*) what=pipe ;;
      anon_inode:*) what=${target#anon_inode:}; what=${what//[\[\]]/} ;;
      /memfd:*) what="memory file ${target#/memfd:}" ;;
      net:*) what="network namespace" ;;
      user:*) what="user namespace" ;;
      *) what=$target ;;
    esac
    echo "  $what"
  done | sort | uniq -c | sed 's/^ *\([0-9]*\)  */  \1 × /'
done
