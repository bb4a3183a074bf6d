#!/bin/sh
# What `make check-gpu` runs: scripts/check_gpu.sh OUT_DIR [TESTS], from the root of the tree. The device tests, into OUT_DIR/tests.log, then
# small cases of each under compute-sanitizer's memcheck and racecheck, JOBS (default 4) at a time, into OUT_DIR/sanitizer.log. TESTS is the folder
# of the programs (default build/tests); one that is not there is "not ok". Under the tools a case counts as ok only when it
# ended in time, printed an "ok" line and no "not ok", and the tool's own summary is zero: a name that no case has, or a run cut
# short, is "not ok". Every line ends with the seconds it took. About three minutes on an H200.
set -u
OUT=${1:?usage: check_gpu.sh OUT_DIR [TESTS]}
T=${2:-build/tests}
mkdir -p "$OUT" || exit 1

# Under a tool: check_gpu.sh OUT_DIR TESTS case NUMBER TOOL PROGRAM ARGUMENTS, where NUMBER names the log.
if [ "${3:-}" = case ]; then
  log=$OUT/sanitizer.$4 tool=$5 program=$6
  shift 6
  began=$(date +%s)
  timeout 100 compute-sanitizer --tool "$tool" --print-limit 20 "$T/$program" "$@" >"$log.all" 2>&1
  rc=$?
  took=$(($(date +%s) - began))
  {
    echo "== $tool $program $*"
    grep -E '^(ok|not ok|skip) |SUMMARY|Error: |Warning: |and (Read|Write) access' "$log.all"
  } >"$log"
  if [ $rc -eq 0 ] && grep -q '^ok ' "$log" && ! grep -q '^not ok' "$log" &&
    grep -qE 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards displayed \(0 errors, 0 warnings\)' "$log"; then
    line="ok $tool $program $*, $took s"
  elif [ $rc -eq 0 ] && grep -q '^skip ' "$log" && ! grep -qE '^(ok|not ok) ' "$log"; then
    line=$(grep -m 1 '^skip ' "$log")
  else
    line="not ok $tool $program $*: exit status $rc, $took s"
  fi
  echo "$line" | tee -a "$log"
  rm -f "$log.all"
  case $line in not*) exit 1 ;; esac
  exit 0
fi

status=0
started=$(date +%s)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
: >"$OUT/tests.log"
for program in "$T"/gpu_*; do
  [ -f "$program" ] && [ -x "$program" ] || continue
  test=$(basename "$program")
  echo "== $test" >>"$OUT/tests.log"
  began=$(date +%s)
  timeout 120 "$program" >"$log" 2>&1
  rc=$?
  took=$(($(date +%s) - began))
  cat "$log" >>"$OUT/tests.log"
  if [ $rc -ne 0 ] || grep -q '^not ok' "$log" || ! grep -qE '^(ok|skip) ' "$log"; then
    echo "not ok $test: exit status $rc, $took s" | tee -a "$OUT/tests.log"
    status=1
  elif ! grep -q '^ok ' "$log"; then
    grep '^skip ' "$log"
  else
    echo "ok $test, $(grep -c '^ok ' "$log") cases, $took s"
  fi
done
echo "# the tests took $(($(date +%s) - started)) s"

if ! command -v compute-sanitizer >/dev/null 2>&1; then
  echo 'skip compute-sanitizer: not installed'
  exit $status
fi
# sanitize PROGRAM ARGUMENTS...: a line for xargs of each tool, or of those in TOOLS.
number=100
rm -f "$OUT"/sanitizer.[0-9]*
sanitize() {
  for tool in ${TOOLS:-memcheck racecheck}; do
    number=$((number + 1))
    printf '%s' "$number $tool"
    printf ' "%s"' "$@"
    echo
  done
}
# Racecheck does not follow cuBLAS: engines run under memcheck alone. The long ones first.
{
  TOOLS=racecheck sanitize gpu_evict quick
  TOOLS=racecheck sanitize gpu_latents quick
  sanitize gpu_leankv quick
  sanitize gpu_packed quick
  TOOLS=memcheck sanitize gpu_engine quick one
  TOOLS=memcheck sanitize gpu_engine_latent quick
  TOOLS=memcheck sanitize gpu_engine_leankv quick
  TOOLS=memcheck sanitize gpu_engine_evict quick
  TOOLS=memcheck sanitize gpu_engine_packed quick
  TOOLS=memcheck sanitize gpu_evict quick
  TOOLS=memcheck sanitize gpu_latents quick
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
  sanitize gpu_few_rows
  sanitize gpu_leankv_pages
} >"$log"
xargs -P "${JOBS:-4}" -L 1 sh "$0" "$OUT" "$T" case <"$log" || status=1
cat "$OUT"/sanitizer.[0-9]* >"$OUT/sanitizer.log"
rm -f "$OUT"/sanitizer.[0-9]*
echo "# all took $(($(date +%s) - started)) s"
exit $status
