#!/bin/sh
# Runs one item of each task, prints the time and the memory that all items and methods will take, and writes the lines to a file.
# usage: estimate.sh FILE ITEMS METHODS COMMAND [ARGUMENT ...]
# COMMAND is kvdim-tasks with two methods. METHODS are as those of --method; KEY=A/B/C counts as three.
set -eu
file=$1 items=$2 methods=$3
shift 3
points=$(for m in $methods; do echo "$m"; done | awk -F, '{ n = 1; for (i = 2; i <= NF; i++) n *= split($i, x, "/"); sum += n } END { print sum + 0 }')
scratch=$file.scratch
trap 'rm -f "$scratch" "$scratch".*' EXIT
began=$(date +%s)
"$@" -q --json -o "$scratch" >"$scratch.json" &
pid=$!
# The largest resident set, from Linux, and the most memory in use on the first GPU; the last look comes at most 0.2 s before the end.
while grep -s VmHWM "/proc/$pid/status" >"$scratch.now"; do
  mv "$scratch.now" "$scratch.memory"
  nvidia-smi -i 0 --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null >>"$scratch.gpu" || true
  sleep 0.2
done
wait $pid
took=$(($(date +%s) - began))
memory=$(awk '{ printf "%.2f GiB", $2 / 1048576 }' "$scratch.memory" 2>/dev/null)
gpu=$(sort -n "$scratch.gpu" 2>/dev/null | tail -1 | awk '{ printf " and %.1f GiB on the GPU", $1 / 1024 }')
# Seconds of each method on all tasks, of one path in a line: "SECONDS METHOD PATH". Rows of means over tasks are left out.
awk -F'"' '/^ *}/ { if (method != "" && label !~ /^mean of /) { s[method] += seconds; where[method] = path } method = "" }
  $2 == "method" { method = $4 } $2 == "label" { label = $4 } $2 == "path" { path = $4 } $2 == "free_seconds" { seconds = $3; gsub(/[:, ]/, "", seconds) }
  END { for (m in s) print s[m], m, where[m] }' "$scratch.json" | sort -g >"$scratch.times"
{
  echo "$points methods, $items items of each task. One item of each took $took s with three methods, of which:"
  awk '{ s = $1; m = $2; sub(/^[^ ]* [^ ]* /, ""); printf "%8.2f s  %-6s %s\n", s, m, $0 }' "$scratch.times"
  awk -v n="$points" -v items="$items" -v took="$took" '
    function text(t) { return t < 60 ? "a minute" : t < 7200 ? sprintf("%.0f minutes", t / 60 + 0.5) : sprintf("%.1f hours", t / 3600) }
    $2 != "none" { if (low == "" || $1 < low) low = $1; if ($1 > high) high = $1 } { all += $1 }
    END { start = took > all ? took - all : 0
      a = text(start + (n + 1) * items * low); b = text(start + (n + 1) * items * high)
      printf "All will take about %s and %s of memory%s on this machine; an interrupted run continues.\n", a == b ? a : a " to " b, "'"${memory:-an unknown amount}"'", "'"$gpu"'" }' "$scratch.times"
} | tee "$file.unfinished"
mv "$file.unfinished" "$file"
