#!/bin/sh
# What `make check-gpu` runs: scripts/check_gpu.sh OUT_DIR [TESTS]. The device tests, into OUT_DIR/tests.log, then small cases of each
# under compute-sanitizer's memcheck and racecheck, into OUT_DIR/sanitizer.log. TESTS is where the programs lie (default
# build/tests). Under the tools a case counts as ok only when it ended in time, printed an "ok" line and no "not ok", and the tool's own
# summary is zero: a name that no case has, or a run cut short, is "not ok". About three minutes on an H200.
set -u
OUT=${1:?usage: check_gpu.sh OUT_DIR [TESTS]}
T=${2:-build/tests}
mkdir -p "$OUT" || exit 1
status=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

: >"$OUT/tests.log"
for program in "$T"/gpu_*; do
  case $program in *.d) continue ;; esac
  test=$(basename "$program")
  echo "== $test" >>"$OUT/tests.log"
  timeout 120 "$program" >"$log" 2>&1
  rc=$?
  cat "$log" >>"$OUT/tests.log"
  if [ $rc -ne 0 ] || grep -q '^not ok' "$log" || ! grep -qE '^(ok|skip) ' "$log"; then
    echo "not ok $test: exit status $rc" | tee -a "$OUT/tests.log"
    status=1
  elif ! grep -q '^ok ' "$log"; then
    grep '^skip ' "$log"
  else
    echo "ok $test, $(grep -c '^ok ' "$log") cases"
  fi
done

if ! command -v compute-sanitizer >/dev/null 2>&1; then
  echo 'skip compute-sanitizer: not installed'
  exit $status
fi
: >"$OUT/sanitizer.log"
# sanitize PROGRAM ARGUMENTS...: under both tools, or those in TOOLS.
sanitize() {
  for tool in ${TOOLS:-memcheck racecheck}; do
    echo "== $tool $*" >>"$OUT/sanitizer.log"
    program=$1; shift
    timeout 60 compute-sanitizer --tool $tool --print-limit 20 "$T/$program" "$@" >"$log" 2>&1
    rc=$?
    set -- "$program" "$@"
    grep -E '^(ok|not ok|skip) |SUMMARY|Error: |Warning: |and (Read|Write) access' "$log" >>"$OUT/sanitizer.log"
    if grep -q '^skip ' "$log"; then
      grep '^skip ' "$log"
    elif [ $rc -eq 0 ] && grep -q '^ok ' "$log" && ! grep -q '^not ok' "$log" &&
      grep -qE 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards displayed \(0 errors, 0 warnings\)' "$log"; then
      echo "ok $tool $*" | tee -a "$OUT/sanitizer.log"
    else
      echo "not ok $tool $*: exit status $rc" | tee -a "$OUT/sanitizer.log"
      status=1
    fi
  done
}
for case in one short mixed mixed_f16 sharp sharp_f16; do
  sanitize gpu_prefill $case prefill_sm90
  sanitize gpu_prefill $case prefill_mma
done
for case in 'one token' 'odd lengths' 'group 3' 'group 10' 'group 16'; do sanitize gpu_decode "$case" 1; done
for case in 'one token' 'one CTA' ragged; do sanitize gpu_decode_plan "$case"; done
sanitize gpu_prefill_plan
for case in mixed_half_f16 mixed_pairs steps; do sanitize gpu_append $case; done
for case in 'rank 80' 'ragged fp16'; do sanitize gpu_palu "$case"; done
sanitize gpu_fill
sanitize gpu_packed quick
sanitize gpu_few_rows
sanitize gpu_leankv_pages
sanitize gpu_leankv quick
sanitize gpu_zdc quick
TOOLS=memcheck sanitize gpu_engine quick one
TOOLS=memcheck sanitize gpu_engine_latent quick
TOOLS=memcheck sanitize gpu_engine_leankv quick
TOOLS=memcheck sanitize gpu_engine_zdc quick
TOOLS=memcheck sanitize gpu_engine_zdc_layers quick
exit $status
