#!/bin/sh
# The commands of `make check-gpu`. Usage: scripts/check_gpu.sh OUT_DIR [TESTS], from the root of
# the tree. The device tests, into OUT_DIR/tests.log, then small cases of each under
# compute-sanitizer's memcheck and racecheck, into OUT_DIR/sanitizer.log; JOBS (default: 4 for each GPU) at
# a time, but those that measure, or take several GPUs, alone. The GPUs are those of
# CUDA_VISIBLE_DEVICES, or all. PARTS, of "alone together sanitizer", are the parts to run (default
# all), so that GPUs can divide them. TESTS is the folder of the programs (default build/tests), and
# nothing else is needed of a build. Under the tools a case counts as ok only when it ended in time,
# printed an "ok" line and no "not ok", and the tool's own summary is zero: a name that no case has,
# a program that is not there, or a run cut short, is "not ok". Lines end with the seconds they
# took. About eight minutes on two H200.
set -u
OUT=${1:?usage: check_gpu.sh OUT_DIR [TESTS]}
T=${2:-build/tests}
mkdir -p "$OUT" || exit 1

# Threads of several programs share the cores. A thread that waits must sleep: with libgomp's default, which waits in a loop, the references on the
# CPU take many times as long.
export OMP_WAIT_POLICY=passive

# One of them: check_gpu.sh OUT_DIR TESTS run NUMBER TOOL PROGRAM ARGUMENTS. NUMBER names the log, TOOL may be "alone".
if [ "${3:-}" = run ]; then
  log=$OUT/run.$4 tool=$5 program=$6
  shift 6
  began=$(date +%s)
  if [ -n "${SLOT:-}" ]; then
    CUDA_VISIBLE_DEVICES=$(echo "$CARD_LIST" | cut -d, -f$((SLOT % CARDS + 1)))
    export CUDA_VISIBLE_DEVICES OMP_NUM_THREADS=$(((2 * $(nproc) + AT_ONCE - 1) / AT_ONCE))
  fi
  if [ "$tool" = alone ]; then
    name="$program${*:+ }$*"
    timeout 300 "$T/$program" "$@" >"$log.all" 2>&1
  else
    name="$tool $program${*:+ }$*"
    # NCCL asks for kernels that its build has no image of; what kvdim calls it checks itself.
    if [ "$program" = gpu_engine_zdc_layers ]; then tool="$tool --report-api-errors no"; fi
    # shellcheck disable=SC2086
    timeout 100 compute-sanitizer --tool $tool --print-limit 20 "$T/$program" "$@" >"$log.all" 2>&1
  fi
  rc=$?
  took="$(($(date +%s) - began)) s"
  {
    echo "== $name"
    if [ "$tool" = alone ]; then cat "$log.all"; else
      grep -E '^(ok|not ok|skip) |SUMMARY|Error: |Warning: |and (Read|Write) access|= (Invalid|Program hit|Leaked)|=     (at|Address|by thread) ' "$log.all"
    fi
  } >"$log"
  clean=yes
  [ "$tool" = alone ] ||
    grep -qE 'ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards displayed \(0 errors, 0 warnings\)' "$log" || clean=no
  if [ $rc -eq 0 ] && [ $clean = yes ] && grep -q '^ok ' "$log" && ! grep -q '^not ok' "$log"; then
    line="ok $name, $(grep -c '^ok ' "$log") cases, $took"
  elif [ $rc -eq 0 ] && grep -q '^skip ' "$log" && ! grep -qE '^(ok|not ok) ' "$log"; then
    line=$(grep -m 1 '^skip ' "$log")
  else
    line="not ok $name: exit status $rc, $took"
  fi
  echo "$line" | tee -a "$log"
  rm -f "$log.all"
  case $line in not*) exit 1 ;; esac
  exit 0
fi

# entry TOOL PROGRAM ARGUMENTS...: a line for run_all.
# The fixtures of the tests, where a build did not extract them.
sh scripts/archives.sh unpack || exit 1
number=1000
entry() {
  number=$((number + 1))
  printf '%s %s' $number "$1"
  shift
  printf ' "%s"' "$@"
  echo
}

# run_all JOBS LOG: the lines of standard input; what they print goes to the end of LOG, in their order. Of several JOBS each has one GPU, those
# of several in turns, and its part of the cores.
status=0
CARD_LIST=${CUDA_VISIBLE_DEVICES:-$(nvidia-smi -L 2>/dev/null | sed -n 's/^GPU \([0-9]*\):.*/\1/p' | paste -sd, -)}
CARD_LIST=${CARD_LIST:-0}
CARDS=$(echo "$CARD_LIST" | tr ',' '\n' | grep -c .)
export CARDS CARD_LIST AT_ONCE
run_all() {
  AT_ONCE=$1
  if [ "$1" -gt 1 ]; then set -- "$1" "$2" --process-slot-var=SLOT; fi
  xargs -r -P "$1" -L 1 ${3:-} sh "$0" "$OUT" "$T" run || status=1
  cat "$OUT"/run.[0-9]* >>"$2" 2>/dev/null
  rm -f "$OUT"/run.[0-9]*
}

list=$(mktemp)
trap 'rm -f "$list"' EXIT
rm -f "$OUT"/run.[0-9]*
started=$(date +%s)

# Clocks, rates, shares of time and the card's free memory are checked there, or several GPUs work together.
PARTS=${PARTS:-alone together sanitizer}
for part in $PARTS; do
  case $part in
  alone | together | sanitizer) ;;
  *) echo "check_gpu.sh: PARTS has '$part', known are alone, together and sanitizer" >&2; exit 2 ;;
  esac
done
asked() { case " $PARTS " in *" $1 "*) ;; *) return 1 ;; esac; }
measures='gpu_ceilings gpu_engine gpu_forward gpu_forward_experts gpu_engine_zdc_layers gpu_exchange gpu_forward_several gpu_engine_by_head'
: >"$OUT/tests.log"
begun=
if asked alone; then
  for test in $measures; do entry alone "$test"; done
  entry alone gpu_generate gpus
fi >"$list"
run_all 1 "$OUT/tests.log" <"$list"
# Programs that take a minute or more run in parts side by side, and begin first.
long='gpu_generate gpu_engine_evict gpu_engine_packed gpu_packed'
others=$(for program in "$T"/gpu_*; do basename "$program"; done)
for test in $long $others; do
  case " $measures $begun " in *" $test "*) continue ;; esac
  asked together && [ -f "$T/$test" ] && [ -x "$T/$test" ] || continue
  begun="$begun $test"
  case $test in
  gpu_generate) set -- 'bf16 1/5' 'bf16 2/5' 'bf16 3/5' 'bf16 4/5' 'bf16 5/5' 'f32 1/4' 'f32 2/4' 'f32 3/4' 'f32 4/4' 'windows 1/3' 'windows 2/3' 'windows 3/3' ;;
  gpu_engine_evict) set -- 1/4 2/4 3/4 4/4 ;;
  gpu_engine_packed) set -- windows models ;;
  gpu_packed) set -- 1/2 2/2 ;;
  *) set -- '' ;;
  esac
  # shellcheck disable=SC2086
  for part; do entry alone "$test" $part; done
done >"$list"
run_all "${JOBS:-$((4 * CARDS))}" "$OUT/tests.log" <"$list"
echo "# the tests took $(($(date +%s) - started)) s"

asked sanitizer || exit $status
if ! command -v compute-sanitizer >/dev/null 2>&1; then
  echo 'skip compute-sanitizer: not installed'
  exit $status
fi
# sanitize PROGRAM ARGUMENTS...: under both tools, or those in TOOLS.
sanitize() {
  for tool in ${TOOLS:-memcheck racecheck}; do entry "$tool" "$@"; done
}
# Engines run under memcheck alone: racecheck fails at the first call of cuBLAS. The long ones first.
{
  TOOLS=memcheck sanitize gpu_engine_evict quick
  for part in windows models; do TOOLS=memcheck sanitize gpu_engine_packed quick $part; done
  TOOLS=memcheck sanitize gpu_engine_latent quick
  TOOLS=memcheck sanitize gpu_engine_by_head quick
  TOOLS=memcheck sanitize gpu_engine_leankv quick
  TOOLS=memcheck sanitize gpu_engine_zdc quick
  TOOLS=memcheck sanitize gpu_engine_zdc_layers quick
  TOOLS=memcheck sanitize gpu_engine quick one
  TOOLS=memcheck sanitize gpu_backward quick
  for part in 1/3 2/3 3/3; do TOOLS=memcheck sanitize gpu_generate quick $part; done
  TOOLS=memcheck sanitize gpu_forward_experts quick
  sanitize gpu_blocks_back small
  for test in gpu_leankv gpu_packed gpu_packed_turned gpu_evict gpu_uneven gpu_uneven_layers gpu_selection gpu_latents gpu_zdc; do sanitize $test quick; done
  for case in one short mixed mixed_f16 sharp sharp_f16; do
    sanitize gpu_prefill $case prefill_sm90
    sanitize gpu_prefill $case prefill_mma
  done
  for case in 'one token' 'odd lengths' 'odd lengths, f16' 'group 3' 'group 10' 'group 16'; do sanitize gpu_decode "$case" 1; done
  for window in 17 100; do
    sanitize gpu_prefill mixed prefill_sm90 $window
    sanitize gpu_prefill mixed prefill_mma $window
    for case in 'odd lengths' 'odd lengths, f16'; do sanitize gpu_decode "$case" 1 $window; done
  done
  for case in 256_one 256_short 256_mixed 256_mixed_f16; do
    sanitize gpu_prefill $case prefill_sm90
    sanitize gpu_prefill $case prefill_mma
  done
  for case in prefill_sm90 prefill_mma; do sanitize gpu_prefill 256_mixed $case 17; done
  for case in 'wide mix' 'wide mix, f16' 'wide by 16' 'wide by 16, f16' 'wide short'; do sanitize gpu_decode "$case" 1; done
  for case in 'wide mix' 'wide mix, f16'; do sanitize gpu_decode "$case" 1 17; done
  for case in 'one token' 'one CTA' ragged; do sanitize gpu_decode_plan "$case"; done
  sanitize gpu_prefill_plan
  for case in mixed_half_f16 mixed_pairs steps 256_half 256_mixed 256_steps; do sanitize gpu_append $case; done
  for case in 'rank 80' 'ragged fp16'; do sanitize gpu_palu "$case"; done
  sanitize gpu_fill
  sanitize gpu_few_rows
  sanitize gpu_leankv_pages
} >"$list"
: >"$OUT/sanitizer.log"
run_all "${JOBS:-$((4 * CARDS))}" "$OUT/sanitizer.log" <"$list"
echo "# all took $(($(date +%s) - started)) s"
exit $status
