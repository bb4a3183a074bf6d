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
build shared "-L$D/lib" -lkvdim-attention "-Wl,-rpath,$D/lib" && "$D/shared" 100 20 >"$D/a" 2>"$D/err" &&
  grep -q '^a token takes 288 bytes instead of 512$' "$D/a" && ok "examples/c with the shared library" ||
  not_ok "examples/c with the shared library"
for a in "0 5" "5 0" "-5 3" "3 -9" "2000000000 2000000000"; do
  # shellcheck disable=SC2086 # two arguments
  "$D/shared" $a >"$D/out" 2>"$D/err"
  [ $? -eq 2 ] && grep -q '^usage: ' "$D/err" || not_ok "examples/c with the arguments $a"
done
if grep -q libcudart "$D/needed" || nm "$B/lib/libkvdim-attention.a" 2>/dev/null | grep -q ' U cuda'; then
  echo 'skip examples/c with the archive: it needs the static CUDA runtime'
else
  build static "$B/lib/libkvdim-attention.a" -fopenmp && "$D/static" 100 20 >"$D/b" 2>"$D/err" &&
    [ "$(sed -n 's/.*checksum \([0-9a-f]*\).*/\1/p' "$D/a")" = "$(sed -n 's/.*checksum \([0-9a-f]*\).*/\1/p' "$D/b")" ] &&
    ok "examples/c with the archive" || not_ok "examples/c with the archive"
fi

if "$PYTHON" -c 'import torch, transformers, h5py' 2>/dev/null; then
  model=data/models/kvdim-6m
  "$B/bin/kvdim-collect" $model --text data/texts/stories.txt --tokens 2048 --moments -q -o "$D/m.h5" &&
    "$B/bin/kvdim-spectrum" "$D/m.h5" -q -o "$D/s.h5" &&
    "$B/bin/kvdim-fit" "$D/s.h5" --overall-p 0.3 -q -o "$D/r.h5" &&
    "$PYTHON" examples/pytorch/cut_llama.py $model "$D/s.h5" "$D/r.h5" --steps 4 --library "$so" >"$D/py" 2>"$D/err"
  # At full width only the rounding to 16 bits differs.
  awk '/^full width/ { full = $7 + 0 < 0.002 } /^point/ { cut = $3 < 2800 && $7 + 0 < 0.1 } END { exit !(full && cut) }' "$D/py" &&
    ok "examples/pytorch" || not_ok "examples/pytorch"
else
  echo "skip examples/pytorch: $PYTHON lacks torch, transformers or h5py"
fi
