#!/bin/sh
# bench_eval.sh MODEL TEXT CALIBRATION [TOKENS [METHOD...]]: what kvdim-eval costs on two threads: none alone, and each method with it, over TOKENS (65536) of
# TEXT. CPU seconds are user and system time of all threads; unlike the wall time they hardly depend on what else the machine does. Beyond: CPU seconds
# over two, less 1.3 times those of none. Bases and latents are of 4096 tokens of CALIBRATION. Needs build/tests/tool_rusage.
set -eu
[ $# -ge 3 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
B=${BUILD:-build} model=$1 text=$2 calibration=$3 tokens=${4:-65536}
shift 3; [ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- none zack,p=0.5 palu,p=0.5 kivi h2o keyformer+zack,p=0.5 leankv
dir=$(mktemp -d "${TMPDIR:-/var/tmp}/kvd-eval.XXXXXX")
trap 'rm -rf "$dir"' EXIT
export OMP_WAIT_POLICY=passive

cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
echo "# $(date -u +%F), $("$B/bin/kvdim-eval" --version), $cpu, $(nproc) CPUs, Linux $(uname -r), $(${CC:-cc} --version | head -n 1)"
echo "# $(basename "$model"), $tokens tokens of $(basename "$text") in sequences of 512, prompts of 128 where a method wants them, --threads 2; load before: $(cut -d' ' -f1-3 /proc/loadavg)"
"$B/bin/kvdim-collect" "$model" --text "$calibration" --tokens 4096 --rope both --dtype f16 --device cpu -q -o "$dir/dump.h5"
"$B/bin/kvdim-spectrum" "$dir/dump.h5" --pair qk,vw --device cpu -q -o "$dir/bases.h5"
printf '%-22s %8s %8s %14s %10s %9s\n' kvdim-eval 'wall s' 'CPU s' 'own pass, s' 'beyond, s' 'peak MiB'
none=
for method; do
  case $method in h2o* | keyformer* | leankv* | snapkv* | think* | xkv* | minicache*) prompt=128 ;; *) prompt=0 ;; esac
  "$B/tests/tool_rusage" -c "$B/bin/kvdim-eval" "$model" --text "$text" --tokens "$tokens" --seq-len 512 --prompt $prompt --device cpu --threads 2 --spectrum "$dir/bases.h5" \
    --calibration "$dir/dump.h5" --method "$method" --json -q -o "$dir/out.h5" >"$dir/json" 2>"$dir/use" || { cat "$dir/use" >&2; exit 1; }
  read -r wall peak cpu major <<END
$(tail -n 1 "$dir/use")
END
  [ -n "$none" ] || none=$cpu
  own=$(sed -n 's/.*"seconds": \([0-9.]*\).*/\1/p' "$dir/json" | tail -n 1)
  printf '%-22s %8s %8s %14.1f %10s %9s\n' "$method" "$wall" "$cpu" "$own" "$(awk -v c="$cpu" -v n="$none" 'BEGIN { printf "%.1f", (c - 1.3 * n) / 2 }')" "$peak"
done
echo "# load after: $(cut -d' ' -f1-3 /proc/loadavg)"
