#!/usr/bin/env bash
# Prints the cgroup v2 controllers a session's limits need and this host does not offer, one per line.
# Nothing printed means: limits can be enforced here.
set -euo pipefail

mounted=$(awk '{ for (i = 7; i <= NF; i++) if ($i == "-" && $(i + 1) == "cgroup2") { print $5; exit } }' /proc/self/mountinfo)
offered=
if [ -n "$mounted" ] && [ -r "$mounted/cgroup.controllers" ]; then offered=$(cat "$mounted/cgroup.controllers"); fi
for controller in memory pids cpu; do
    case " $offered " in
        *" $controller "*) ;;
        *) echo "$controller" ;;
    esac
done
