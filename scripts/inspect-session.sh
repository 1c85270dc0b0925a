#!/bin/bash
# Prints what the kernel says about the processes of a running session: who they are, what confines them, which namespaces
# they are in, which memory they share and which descriptors they hold. Reads /proc only; run it as root.
#
#     scripts/inspect-session.sh BROKER_PID
#
# docs/architecture.md shows its output for the example capsule; tests/tests/system/tables.rs asserts the rules in it. Ids of
# the session and hashes are shown by name, so that two runs print the same.
set -euo pipefail

broker=${1:?usage: inspect-session.sh BROKER_PID}
[ -r "/proc/$broker/status" ] || { echo "no process $broker" >&2; exit 1; }
children=$(cat "/proc/$broker/task/"*/children)
all="$broker $children"

declare -A name=([$broker]=broker)
for pid in $children; do IFS= read -rd '' "name[$pid]" <"/proc/$pid/cmdline" || true; done

field() { sed -n "s/^$2:[[:space:]]*//p" "/proc/$1/status" | tr '\t' ' '; }
neutral() { sed -E 's/ses_[0-9a-f]{32}/<session>/g; s/[0-9a-f]{64}\./<sha256>./; s,/programs/[0-9]+/,/programs/<leaf>/,'; }

echo "# processes"
row='%-13s %-7s %-11s %-11s %-6s %s\n'
printf "$row" name threads uid gid groups rss-kB
for pid in $all; do
  printf "$row" "${name[$pid]}" "$(field "$pid" Threads)" "$(field "$pid" Uid | cut -d' ' -f1)" \
    "$(field "$pid" Gid | cut -d' ' -f1)" "$(field "$pid" Groups | wc -w)" "$(field "$pid" VmRSS | cut -d' ' -f1)"
done

echo
echo "# confinement (of all threads: the least of the first two, the union of the sets)"
row='%-13s %-12s %-8s %-17s %-17s %s\n'
printf "$row" name no_new_privs seccomp permitted bounding dumpable
for pid in $all; do
  nnp=1 seccomp=2 permitted=0 bounding=0
  while read -r key value; do
    case $key in
      NoNewPrivs:) ((value >= nnp)) || nnp=$value ;;
      Seccomp:) ((value >= seccomp)) || seccomp=$value ;;
      CapPrm:) permitted=$((permitted | 16#$value)) ;;
      CapBnd:) bounding=$((bounding | 16#$value)) ;;
    esac
  done < <(cat "/proc/$pid/task"/*/status)
  # The files in /proc/<pid> belong to root if the process is not dumpable, else to its user: of one of root's they tell nothing.
  dumpable=-
  if [ "$(field "$pid" Uid | cut -d' ' -f1)" != 0 ]; then
    dumpable=no
    [ "$(stat -c %u "/proc/$pid/environ")" = 0 ] || dumpable=yes
  fi
  printf "$row" "${name[$pid]}" "$nnp" "$seccomp" "$(printf %016x "$permitted")" "$(printf %016x "$bounding")" "$dumpable"
done

echo
echo "# namespaces (= the broker's own; equal letters are one namespace)"
row='%-13s %-4s %-4s %-4s %-4s %-4s %s\n'
printf "$row" name user mnt pid ipc uts net
declare -A letter=()
for pid in $all; do
  marks=()
  for kind in user mnt pid ipc uts net; do
    namespace=$(readlink "/proc/$pid/ns/$kind")
    if [ "$namespace" = "$(readlink "/proc/$broker/ns/$kind")" ]; then
      marks+=("=")
    else
      number=${#letter[@]}
      : "${letter[$namespace]:=$(printf "\\x$(printf %x $((65 + number)))")}"
      marks+=("${letter[$namespace]}")
    fi
  done
  printf "$row" "${name[$pid]}" "${marks[@]}"
done

echo
echo "# shared memory that is mapped"
row='%-13s %-12s %-6s %s\n'
printf "$row" name file rights kB
for pid in $all; do
  while read -r range rights _ _ _ file _; do
    [[ $file == /memfd:* && $rights == ???s ]] || continue
    printf "$row" "${name[$pid]}" "${file#/memfd:}" "$rights" $(((16#${range#*-} - 16#${range%-*}) / 1024))
  done <"/proc/$pid/maps"
done

# A socket is in the tables of the network namespace it was made in, whoever holds it.
declare -A socket=()
for pid in $all; do
  while read -r inode what; do socket[$inode]=$what; done < <(
    awk 'FNR > 1 { print $7, "unix", $5 == "0005" ? "seqpacket" : $5 == "0001" ? "stream" : "datagram" }' "/proc/$pid/net/unix"
    for table in tcp tcp6 udp udp6 raw raw6; do
      [ ! -r "/proc/$pid/net/$table" ] || awk -v kind="${table%6}" \
        'FNR > 1 { print $10, kind (kind != "tcp" ? "" : $4 == "0A" ? " listening" : " connected") }' "/proc/$pid/net/$table"
    done
  )
done

rights() { # of the descriptor $1, as it was opened
  local key value
  while read -r key value; do
    [ "$key" = flags: ] || continue
    if ((8#$value & 8#10000000)); then echo "path"; return; fi
    case $((8#$value & 3)) in 0) echo "read" ;; 1) echo "write" ;; *) echo "read, write" ;; esac
  done <"$1"
}

echo
echo "# descriptors"
for pid in $all; do
  echo "${name[$pid]}:"
  while read -r fd target; do
    target=${target% (deleted)}
    case $target in
      socket:*) inode=${target//[^0-9]/}; echo "socket ${socket[$inode]:-unknown}" ;;
      pipe:*) echo pipe ;;
      anon_inode:*) target=${target#anon_inode:}; echo "${target//[\[\]]/}" ;;
      /memfd:*) echo "memory file ${target#/memfd:}" ;;
      net:* | user:* | mnt:* | pid:*) echo "${target%%:*} namespace" ;;
      /dev/*) echo "$target" ;;
      *)
        kind=file
        [ ! -d "/proc/$pid/fd/$fd" ] || kind=directory
        echo "$kind $target ($(rights "/proc/$pid/fdinfo/$fd"))" ;;
    esac
  done < <(find "/proc/$pid/fd" -type l -printf '%f %l\n') | neutral | LC_ALL=C sort | uniq -c | sed -E 's/^ *([0-9]+) +/  \1 × /'
done
