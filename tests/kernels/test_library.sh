#!/bin/sh
# libkvdim-attention as others meet it: exported names, make install with pkg-config, the example in C
# with the shared library and with the archive, and the PyTorch example where torch is installed.
. tests/lib/cases.sh
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES
log=$D/err # not_ok shows it
if grep -q __asan_init "$B/bin/kvdim-collect"; then
  echo 'skip libkvdim-attention: a library with AddressSanitizer cannot be loaded by other programs'
  exit 0
fi
: >"$D/err"

so=$(ls "$B"/lib/libkvdim-attention.so.?)
sed -n 's/^[a-z].*[ *]\(kvdim_[a-z_]*\)(.*[;,].*/\1/p' include/kvdim/attention.h | sort -u >"$D/declared"
nm -D --defined-only "$so" | awk '{ print $3 }' | sort >"$D/exported"
diff "$D/declared" "$D/exported" >"$D/err" && ok "the shared library exports the functions of the header" ||
  not_ok "the shared library exports the functions of the header"
nm -g --defined-only "$B/lib/libkvdim-attention.a" 2>/dev/null | awk 'NF == 3 { print $3 }' | sort >"$D/archive"
diff "$D/declared" "$D/archive" >"$D/err" && ok "the archive too" || not_ok "the archive too"
objdump -p "$so" | awk '/NEEDED/ { print $2 }' >"$D/needed"
! grep -E 'hdf5|blas|lapack|jansson|csv|pcre' "$D/needed" >"$D/err" && ok "needs no library of the programs" ||
  not_ok "needs no library of the programs"

mkdir "$D/lib" "$D/include"
cp -r include/kvdim "$D/include"
cp "$so" "$D/lib" && ln -s "$(basename "$so")" "$D/lib/libkvdim-attention.so"
build() { # OUTPUT LIBRARIES...: compiles the example as a stranger's program
  out=$1
  shift
  ${CC:-cc} -std=c11 -Wall -Wextra -Werror "-I$D/include" examples/c/decode_loop.c "$@" -lm -o "$D/$out" 2>"$D/err"
}
build shared "-L$D/lib" -lkvdim-attention "-Wl,-rpath,$D/lib" && "$D/shared" >"$D/a" 2>"$D/err" &&
  grep -q '^288 of 512 bytes per token$' "$D/a" &&
  [ "$(wc -l <examples/c/decode_loop.c)" -le 80 ] && ok "examples/c with the shared library" ||
  not_ok "examples/c with the shared library"
if grep -q libcudart "$D/needed" || nm "$B/lib/libkvdim-attention.a" 2>/dev/null | grep -q ' U cuda'; then
  echo 'skip examples/c with the archive: it needs the static CUDA runtime'
else
  build static "$B/lib/libkvdim-attention.a" -fopenmp && "$D/static" >"$D/b" 2>"$D/err" && cmp "$D/a" "$D/b" &&
    ok "examples/c with the archive" || not_ok "examples/c with the archive"
fi

cuda=$(dirname "$(command -v "${NVCC:-nvcc}" 2>/dev/null || echo /usr/local/cuda/bin/nvcc)")/..
device=cpu
if ! nvidia-smi -L >/dev/null 2>&1 || ! nm "$B/lib/libkvdim-attention.a" 2>/dev/null | grep -q " U cuda"; then
  echo 'skip the examples on a GPU: no GPU'
else
  device=cuda
  # The outputs differ by at most four units in the last place of bf16.
  build gpu -DWITH_CUDA "-I$cuda/include" "-L$D/lib" -lkvdim-attention "-L$cuda/lib64" -lcudart "-Wl,-rpath,$D/lib:$cuda/lib64" &&
    "$D/gpu" >"$D/g" 2>"$D/err" && sed -n 's/.*bf16//p' "$D/a" "$D/g" | tr -d '\n' |
    "$PYTHON" -c 'import sys; x = [int(w, 16) for w in sys.stdin.read().split()]; sys.exit(len(x) != 6 or any(abs(a - b) > 4 for a, b in zip(x, x[3:])))' &&
    ok "examples/c on the GPU" || not_ok "examples/c on the GPU"
  cat "$D/g"
fi

if "$PYTHON" -c 'import torch, transformers, h5py' 2>/dev/null; then
  model=data/models/kvdim-6m
  "$B/bin/kvdim-collect" $model --text data/texts/stories.txt --tokens 2048 --moments -q -o "$D/m.h5" &&
    "$B/bin/kvdim-spectrum" "$D/m.h5" -q -o "$D/s.h5" &&
    "$B/bin/kvdim-fit" "$D/s.h5" --overall-p 0.3 -q -o "$D/r.h5" &&
    "$PYTHON" examples/pytorch/cut_llama.py $model "$D/s.h5" "$D/r.h5" "$so" $device >"$D/py" 2>"$D/err"
  # At full width only the rounding to 16 bits differs.
  awk '/^full width/ { full = $8 + 0 < 0.002 } /^cut/ { cut = $2 < 2800 && $7 + 0 < 0.1 } END { exit !(full && cut) }' "$D/py" &&
    [ "$(wc -l <examples/pytorch/cut_llama.py)" -le 100 ] && ok "examples/pytorch" || not_ok "examples/pytorch"
  # Arguments with one missing thing each: a library, a rotation file, a model.
  for missing in "$model $D/s.h5 $D/r.h5 $D/none" "$model $D/none $D/r.h5 $so" "$D/none $D/s.h5 $D/r.h5 $so"; do
    HF_HUB_OFFLINE=1 "$PYTHON" examples/pytorch/cut_llama.py $missing >"$D/py" 2>"$D/err"; rc=$?
    [ $rc -eq 1 ] && [ "$(wc -l <"$D/err")" -eq 1 ] && grep -q "^cannot open one of .*: .*$D/none" "$D/err" && ok "examples/pytorch without a file" || not_ok "examples/pytorch without a file" "status $rc" "$(cat "$D/err")"
  done
else
  echo "skip examples/pytorch: $PYTHON lacks torch, transformers or h5py"
fi
