#!/bin/sh
# Programs under a limit on the address space end within seconds, with their result or with one line that
# names the limit. OpenBLAS maps 128 MB for every thread and, on its own, repeats a failed mmap for ever.
set -u
B=${BUILD:-build}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OMP_WAIT_POLICY=passive
ok() { echo "ok $1"; }
not_ok() { sed 's/^/# /' "$dir/err"; echo "not ok $1"; }
if grep -q __asan_init "$B/bin/kvdim-collect"; then
  echo 'skip limits on the address space: AddressSanitizer maps terabytes'
  exit 0
fi
# limited MB COMMAND...: the status of COMMAND under the limit; 124 or 137 if it does not end by itself.
limited() {
  mb=$1
  shift
  rm -rf "$dir/o.h5"
  (ulimit -v $((mb * 1024)) && exec timeout -k 5 30 "$@") >"$dir/out" 2>"$dir/err"
}

collect="$B/bin/kvdim-collect tests/data/families/qwen3-gqa --random 400 --seq-len 40 -q"
$collect --moments="$dir/m.h5" -o "$dir/a.h5" && "$B/bin/kvdim-spectrum" "$dir/m.h5" -q -o "$dir/s.h5" ||
  { echo "not ok cannot make inputs"; exit 1; }

# The environment in which a program runs after it has restarted itself.
env -u OMP_WAIT_POLICY "$B/bin/kvdim-collect" tests/data/families/qwen3-gqa --random 4000000 --seq-len 40 -q -o "$dir/w.h5" 2>"$dir/err" & pid=$!
waits=
for i in $(seq 100); do
  tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx OMP_WAIT_POLICY=passive && waits=passive && break
  sleep 0.05
done
name=$(cat "/proc/$pid/comm" 2>/dev/null)
kill "$pid" 2>/dev/null
wait "$pid" 2>/dev/null
[ -n "$waits" ] && ok "threads that wait sleep" || not_ok "threads that wait sleep"
[ "$name" = kvdim-collect ] && ok "a restart keeps the name of the process" || not_ok "a restart keeps the name of the process: '$name'"
loader=$(ldd "$B/bin/kvdim-collect" | sed -n 's|^[[:space:]]*\(/[^ ]*/ld[-.][^ ]*\).*|\1|p')
env -u OMP_WAIT_POLICY "$loader" "$B/bin/kvdim-collect" --version >"$dir/out" 2>"$dir/err" && grep -q '^kvdim-collect ' "$dir/out" &&
  ok "started by the loader" || not_ok "started by the loader"

# Status 0 with a result; 1 with one line that names the limit (a warning may precede it); 127 if the loader has no
# room for the shared libraries, which it says in one line of its own.
for threads in 1 16; do
  bad='' worked=0
  for mb in 30 60 80 100 150 200 205 210 215 220 230 240 300 500 1000 2000; do
    for command in "$collect --moments=$dir/n.h5" "$B/bin/kvdim-spectrum $dir/m.h5 -q"; do
      # Linux ends a program with SIGSEGV before its first instruction if the limit is below the program's own size,
      # which the kernels of a build with CUDA make large.
      [ "$mb" -gt $(($(stat -Lc %s "${command%% *}") / 1000000 + 5)) ] || continue
      # The environment asks for as many threads as a machine with 16 processors would have.
      limited $mb env OPENBLAS_NUM_THREADS=16 $command --threads $threads -o "$dir/o.h5"
      status=$?
      grep -v '^kvdim-[a-z]*: warning: the limit of [0-9]* KB on memory (ulimit -v) leaves room for 1*[0-9] thread' \
        "$dir/err" >"$dir/lines"
      lines=$(grep -c . "$dir/lines")
      case $status in
      0) [ "$lines" -eq 0 ] && [ -s "$dir/o.h5" ] && worked=$((worked + 1)) ;;
      1) [ "$lines" -eq 1 ] && grep -q "ulimit -v" "$dir/lines" && [ ! -e "$dir/o.h5" ] ;;
      127) [ "$lines" -eq 1 ] && grep -q 'error while loading shared libraries' "$dir/lines" ;;
      *) false ;;
      esac || { bad=1; echo "# ${command%% *}, $mb MB: status $status"; sed 's/^/# /' "$dir/err"; }
    done
  done
  [ -z "$bad" ] && [ $worked -ge 6 ] && echo "ok every limit ends in a result or a line, $threads threads" ||
    echo "not ok every limit ends in a result or a line, $threads threads"
done

# All threads that fit are used, and the file says how many.
threads_of() { h5dump -a /provenance/threads "$1" | sed -n 's/.*(0): //p'; }
limited 2000 "$B/bin/kvdim-spectrum" "$dir/m.h5" -q --threads 16 -o "$dir/o.h5" && threads=$(threads_of "$dir/o.h5") &&
  [ "$threads" -gt 1 ] && [ "$threads" -lt 16 ] && grep -q "leaves room for $threads threads, not 16" "$dir/err" &&
  h5diff -d 1e-9 "$dir/s.h5" "$dir/o.h5" /qk/sigma && ok "fewer threads" || not_ok "fewer threads"
limited 20000 "$B/bin/kvdim-spectrum" "$dir/m.h5" -q --threads 16 -o "$dir/o.h5" && [ "$(threads_of "$dir/o.h5")" -eq 16 ] &&
  [ ! -s "$dir/err" ] && ok "a high limit changes nothing" || not_ok "a high limit changes nothing"

# More threads than OpenBLAS was built for would crash it.
most=$(h5dump -a /provenance/blas "$dir/o.h5" | sed -n 's/.*MAX_THREADS=\([0-9]*\).*/\1/p')
if [ -z "$most" ]; then
  echo "skip this OpenBLAS does not say how many threads it serves"
else
  "$B/bin/kvdim-spectrum" "$dir/m.h5" -q --threads $((most + 1)) -o "$dir/o.h5" 2>"$dir/err" && [ "$(threads_of "$dir/o.h5")" -eq "$most" ] &&
    grep -q "OpenBLAS serves $most threads at most: $most are used, not $((most + 1))" "$dir/err" && ok "no more threads than OpenBLAS serves" ||
    not_ok "no more threads than OpenBLAS serves"
fi

# Help and version need no buffer of OpenBLAS (128 MB). OpenBLAS 0.3.29 maps it all the same. The limit leaves 100 MB for the shared
# libraries and room for the program itself, which in a build with CUDA holds up to 60 MB of kernels.
bad=''
for program in "$B"/bin/kvdim-*; do
  mb=$((100 + $(wc -c <"$program") / 1000000))
  for option in --help --version; do
    limited $mb env OPENBLAS_NUM_THREADS=16 "$program" $option
    case $? in
    0) [ -s "$dir/out" ] ;;
    1) [ "$(grep -c . "$dir/err")" -eq 1 ] && grep -q ': OpenBLAS needs a buffer of 128 MB; raise the limit' "$dir/err" ;;
    *) false ;;
    esac || bad="$bad $program $option"
  done
done
[ -z "$bad" ] && ok "help and version" || { echo "$bad" >"$dir/err"; not_ok "help and version"; }

# A limit on the data counts the same mappings.
(ulimit -d 100000 && exec timeout -k 5 30 "$B/bin/kvdim-spectrum" "$dir/m.h5" -q -o "$dir/d.h5") 2>"$dir/err"
[ $? -eq 1 ] && grep -q '^kvdim-spectrum: OpenBLAS needs a buffer of 128 MB; raise the limit of 100000 KB on memory (ulimit -d)$' "$dir/err" &&
  ok "a limit on the data" || not_ok "a limit on the data"

# Threads of OpenBLAS get the stack that `ulimit -s` allows, and crash if it is too small.
(ulimit -s 64 && exec timeout -k 5 30 "$B/bin/kvdim-spectrum" "$dir/m.h5" -q -o "$dir/d.h5") 2>"$dir/err"
[ $? -eq 1 ] && grep -q '^kvdim-spectrum: .* stack has [0-9]* KB, OpenBLAS needs 128 KB; raise ulimit -s$' "$dir/err" &&
  ok "a small stack" || not_ok "a small stack"

# libgomp itself ends a program whose threads it cannot start, which must not leave an unfinished file.
OMP_STACKSIZE=16k timeout -k 5 30 "$B/bin/kvdim-spectrum" "$dir/m.h5" --threads 2 -q -o "$dir/stack.h5" 2>"$dir/err"; status=$?
if [ $status -eq 1 ] && [ "$(echo "$dir"/stack.h5*)" = "$dir/stack.h5*" ]; then ok "threads that cannot be started leave no file"
elif [ $status -eq 0 ] && [ -e "$dir/stack.h5" ]; then echo "skip threads that cannot be started: they can, with 16 KB of stack"
else not_ok "threads that cannot be started leave no file"; fi

# SIGTERM ends a run under a limit.
(ulimit -v 500000 && exec timeout -k 5 30 $B/bin/kvdim-collect tests/data/families/qwen3-gqa --random 4000000 --seq-len 40 \
  --moments -q -o "$dir/t.h5") 2>"$dir/err" & pid=$!
for i in $(seq 500); do [ -e "$dir/t.h5.partial" ] && break; sleep 0.02; done
sleep 0.2
begun=$(date +%s)
kill -TERM $pid
wait $pid
[ $(($(date +%s) - begun)) -lt 5 ] && grep -q '^kvdim-collect: .*interrupted' "$dir/err" && ok "SIGTERM is heeded" || not_ok "SIGTERM is heeded"

# A line that does not fit into memory is an error, and not the end of the text.
story="Once upon a time there was a little dog named Max. Max liked to play in the park with his red ball."
for i in 1 2 3 4 5 6 7 8; do printf '{"text": "%s %s"}\n' "$story" "$story"; done >"$dir/long.jsonl"
printf '{"prompt": "%s Max", "references": "ball", "metric": "match-part", "max_new_tokens": 2}\n' "$story" >"$dir/long-task.jsonl"
truncate -s 1G "$dir/long.jsonl" "$dir/long-task.jsonl"
for command in "$B/bin/kvdim-collect data/models/kvdim-6m --text $dir/long.jsonl --moments" \
  "$B/bin/kvdim-tasks data/models/kvdim-6m --benchmark $dir/long-task.jsonl --method h2o,heavy=0.1,recent=0.1"; do
  limited 700 $command --threads 1 -q -o "$dir/o.h5"
  status=$?
  name="a line beyond the limit, $(basename "${command%% *}")"
  [ $status -eq 1 ] && grep -q "^kvdim-[a-z]*: cannot read '$dir/long.*jsonl': Cannot allocate memory; raise the limit of" "$dir/err" &&
    [ "$(grep -c . "$dir/err")" -eq 1 ] && [ ! -e "$dir/o.h5" ] && ok "$name" || { echo "status $status" >>"$dir/err"; not_ok "$name"; }
done
