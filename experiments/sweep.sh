#!/bin/sh
# Points of one trace of lengths: sweep.sh KVDIM-SERVE COSTS[,COSTS...] LENGTHS OUT.h5 [OPTION...]
# The bound is SLACK times the mean normalised latency of `none` when no two requests meet; rates are shares of the highest that `none` sustains within it.
set -eu
program=$1 costs=$2 lengths=$3 out=$4
shift 4
# With every file of costs, in their order.
serve() {
  rest=$costs,
  while rest=${rest%,}; [ -n "$rest" ]; do
    set -- --costs "${rest##*,}" "$@"
    rest=${rest%"${rest##*,}"}
  done
  "$program" "$@"
}
scratch=$out.scratch
trap 'rm -f "$scratch"' EXIT
# value COLUMN ROW: of a JSON summary on stdin
value() { sed -n "s/^ *\"$1\": \(.*[^,]\),*\$/\1/p" | sed -n "$2p"; }

# Keeps the options after METHODS that are not --method, and collects the values of --method.
for word in "$@"; do
  shift
  if [ "$word" = --method ]; then skip=1; elif [ "${skip:-0}" = 1 ]; then skip=0 methods="${methods:-} --method $word"; else set -- "$@" "$word"; fi
done
alone=$(serve --method none --requests "poisson:1e-6:$lengths" --n-requests 200 "$@" -q --json -o "$scratch" | value latency_mean_s 1)
bound=$(awk "BEGIN { printf \"%.3g\", ${SLACK:-5} * $alone }")
top=$(serve --method none --requests "poisson:1:$lengths" ${ARRIVALS:+--n-requests "$ARRIVALS"} --max-rate "$bound" "$@" -q --json -o "$scratch" | value rate 2)
[ -n "$top" ] || { echo "sweep.sh: $lengths: the requests do not reach a mean of $bound s per token: give more ARRIVALS" >&2; exit 1; }
rates=$(awk "BEGIN { split(\"0.01 0.025 0.05 0.1 0.25 0.5 0.75 0.9 1 1.1 1.25 1.5 2 2.5\", f); for (i = 1; i <= 14; i++) printf(\"%s%.4g\", (i > 1 ? \",\" : \"\"), f[i] * $top) }")
serve ${methods:-} --requests "poisson:$(awk "BEGIN { printf \"%.4g\", $top }"):$lengths" ${ARRIVALS:+--n-requests "$ARRIVALS"} --request-rate "$rates" --max-rate "$bound" "$@" -q -o "$out"
