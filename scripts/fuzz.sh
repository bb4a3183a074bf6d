#!/bin/sh
# Runs every fuzzer for a while. usage: fuzz.sh FOLDER SECONDS
# The committed corpora are seeds; what libFuzzer finds stays under FOLDER/corpus. A crash leaves its
# input next to it and ends the run with status 1.
set -u
dir=$1 seconds=$2 passed=0 failed=0
export ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1
for f in "$dir"/fuzz_*; do
  [ -x "$f" ] && [ ! -d "$f" ] || continue
  case "$f" in *.d) continue ;; esac
  n=$(basename "$f"); n=${n#fuzz_}
  mkdir -p "$dir/corpus/$n"
  seeds=
  [ -d "tests/fuzz/corpus/$n" ] && seeds="tests/fuzz/corpus/$n"
  if "$f" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=3000 -max_len=65536 -print_final_stats=1 \
       -artifact_prefix="$dir/crash-$n-" "$dir/corpus/$n" $seeds >"$dir/$n.log" 2>&1; then
    passed=$((passed + 1))
    echo "ok fuzz_$n: $(sed -n 's/^stat::number_of_executed_units: *//p' "$dir/$n.log") inputs in $seconds s"
  else
    failed=$((failed + 1))
    echo "not ok fuzz_$n"
    tail -n 30 "$dir/$n.log"
  fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
