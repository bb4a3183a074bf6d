#!/bin/sh
# The floors of docs/layout.md against the includes, the size of folders, and headers that must compile together.
set -u
B=${BUILD:-build}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

sed -n 's/^| \([0-7]\) | `src\/\([a-z]*\)\/` .*/\2 \1/p' docs/layout.md >"$tmp/floors"
for r in src/*/; do
  grep -q "^$(basename "$r") " "$tmp/floors" || echo "$r has no floor"
done >"$tmp/unknown"
if [ -s "$tmp/floors" ] && [ ! -s "$tmp/unknown" ]; then echo "ok every room of src has a floor"
else echo "not ok every room of src has a floor"; cat "$tmp/unknown"; fi

find src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort >"$tmp/sources"
xargs grep -nE '^ *# *include "' <"$tmp/sources" | awk -v floors="$tmp/floors" '
  BEGIN { while ((getline line <floors) > 0) { split(line, x, " "); floor[x[1]] = x[2] } }
  { split($0, at, ":"); split(at[1], from, "/"); match($0, /"[^"]*"/)
    split(substr($0, RSTART + 1, RLENGTH - 2), to, "/")
    if (to[1] in floor && to[1] != from[2] && floor[to[1]] >= floor[from[2]]) print at[1] ":" at[2] ": includes " substr($0, RSTART, RLENGTH) }
' >"$tmp/upward"
if [ ! -s "$tmp/upward" ]; then echo "ok includes go down"; else echo "not ok includes go down"; cat "$tmp/upward"; fi

# A header that includes itself through others would need its guard to compile.
python=${PYTHON:-/usr/bin/python3}
"$python" - "$tmp/sources" >"$tmp/circles" <<'P'
import re, sys
files = [line.strip() for line in open(sys.argv[1])]
graph = {f: {"src/" + p for p in re.findall(r'^\s*#\s*include\s+"([^"]+)"', open(f).read(), re.M)} & set(files) for f in files}
state = {}
def visit(f, path):
    state[f] = 1
    for g in sorted(graph[f]):
        if state.get(g) == 1:
            print(" -> ".join(path[path.index(g):] + [g]))
        elif g not in state:
            visit(g, path + [g])
    state[f] = 2
for f in files:
    if f not in state:
        visit(f, [f])
P
if [ $? -eq 0 ] && [ ! -s "$tmp/circles" ]; then echo "ok no circle of includes"; else echo "not ok no circle of includes"; cat "$tmp/circles"; fi

# A build without CUDA reads no header of CUDA, which a machine may have without nvcc.
find src tests/lib tests/tools tests/*/test_*.c -name '*.c' ! -path '*/cuda/*' ! -path '*/gpu_*' ! -name lose_gpu.c | sort -u |
  xargs $(sed 's/-DKVD_CUDA=1 -isystem [^ ]*//' "$B/flags") -Itests/lib -M -MG 2>"$tmp/log" | tr -d '\\' | tr ' ' '\n' |
  awk '/:$/ { file = $0 } /cuda[a-z_]*\.h$|\/cuda\// { print file, $0 }' | sort -u >"$tmp/cuda"
if [ ! -s "$tmp/cuda" ] && [ ! -s "$tmp/log" ]; then echo "ok a build without CUDA reads no header of CUDA"
else echo "not ok a build without CUDA reads no header of CUDA"; head -n 20 "$tmp/cuda" "$tmp/log"; fi

xargs grep -nE '\bkvd_schema( +const)? +[a-z_]+( *\[[^]]*\])? *= *\{' <"$tmp/sources" | grep -v '^src/formats/' >"$tmp/schemas"
if [ ! -s "$tmp/schemas" ]; then echo "ok only src/formats defines schemas"
else echo "not ok only src/formats defines schemas"; cat "$tmp/schemas"; fi

find src tests -type d ! -path '*/data/*' ! -path '*/corpus*' | while read -r d; do
  n=$(find "$d" -maxdepth 1 -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.sh' -o -name '*.py' \) | wc -l)
  [ "$n" -le 40 ] || echo "$d has $n source files"
done >"$tmp/full"
if [ ! -s "$tmp/full" ]; then echo "ok no folder has more than 40 source files"
else echo "not ok no folder has more than 40 source files"; cat "$tmp/full"; fi

# One name, one meaning: every C header of the tree in one translation unit. The kernels of the CPU are compiled once per
# instruction set from headers that need its vector types.
if [ -e "$B/gen/common/version.h" ]; then
  grep '\.h$' "$tmp/sources" | grep -v -e '/cuda/' -e kernels/cpu/attention_cpu_ | while read -r h; do
    grep -qE '__device__|__global__|<cuda|<cublas|<cudnn|<nccl|<mpi|"[a-z_/]*cuda/' "$h" || printf '#include "%s"\n' "${h#src/}"
  done >"$tmp/all.c"
  n=$(wc -l <"$tmp/all.c")
  if ${CC:-cc} -std=c11 -D_GNU_SOURCE -Isrc -Iinclude -I"$B/gen" $(pkg-config --cflags hdf5 2>/dev/null || pkg-config --cflags hdf5-serial 2>/dev/null) \
       -I/usr/include/hdf5/serial -fsyntax-only "$tmp/all.c" 2>"$tmp/log" && [ "$n" -gt 150 ]
  then echo "ok $n headers compile together"; else echo "not ok $n headers compile together"; grep -m 20 error "$tmp/log"; fi
else
  echo "skip headers compile together: $B is not built"
fi

# The size of a checkout.
if [ -e .git ] && git ls-files -z >"$tmp/tracked" 2>/dev/null; then
  files=$(tr -cd '\0' <"$tmp/tracked" | wc -c) bytes=$(xargs -0 cat <"$tmp/tracked" | wc -c)
  if [ "$files" -le 1300 ] && [ "$bytes" -le 45000000 ]; then echo "ok a checkout has at most 1300 files and 45 MB"
  else echo "not ok a checkout has at most 1300 files and 45 MB: $files files, $bytes bytes"; fi
else
  echo "skip the size of a checkout: not a git checkout"
fi
