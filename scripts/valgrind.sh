#!/bin/sh
# The pipeline of the demo on a few hundred tokens under valgrind: no invalid access, no use of what was not set, no
# definite leak. OPENBLAS_CORETYPE is set so that no program starts itself anew and leaves valgrind's sight.
set -eu
B=${BUILD:-build}
T=$(mktemp -d "${TMPDIR:-/tmp}/kvdim-valgrind.XXXXXX")
trap 'rm -rf "$T"' EXIT INT TERM
M=data/models/kvdim-6m
export OPENBLAS_CORETYPE=Haswell OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
v() {
  valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
    --suppressions=scripts/valgrind.supp "$@" --threads 1 -q && echo "ok $(basename "$1")"
}
v "$B/bin/kvdim-collect" $M --text data/texts/articles.txt --tokens 192 --seq-len 64 --moments="$T/m.h5" -o "$T/a.h5"
v "$B/bin/kvdim-collect" $M --random 192 --seq-len 64 --moments -o "$T/random.h5"
v "$B/bin/kvdim-collect" $M --text data/texts/articles.txt --tokens 192 --seq-len 64 --attention --attention-requests 2 -o "$T/att.h5"
v "$B/bin/kvdim-collect" $M --text data/texts/articles.txt --tokens 96 --seq-len 48 --rope both --fisher="$T/f.h5" -o "$T/both.h5"
v "$B/bin/kvdim-eval" $M --text data/texts/stories.txt --tokens 48 --seq-len 48 --calibration "$T/both.h5" --fisher "$T/f.h5" --method palu,search=1 --method kvquant -o "$T/gradients.h5"
v "$B/bin/kvdim-tokens" "$T/att.h5" -o "$T/tok.h5"
v "$B/bin/kvdim-spectrum" "$T/m.h5" --pair qk,vw,k,v,wv,bqk,bvw -o "$T/s.h5"
v "$B/bin/kvdim-spectrum" "$T/a.h5" --method tsqr -o "$T/s2.h5"
v "$B/bin/kvdim-spectrum" "$T/random.h5" -o "$T/sr.h5"
v "$B/bin/kvdim-similarity" "$T/sr.h5" "$T/s.h5" -o "$T/sim.h5"
v "$B/bin/kvdim-fit" "$T/s.h5" --pair qk,vw --overall-p 0.3,0.6 -o "$T/r.h5"
v "$B/bin/kvdim-eval" $M --text data/texts/stories.txt --tokens 96 --seq-len 48 --method zack --spectrum "$T/s.h5" --rates "$T/r.h5" -o "$T/acc.h5"
v "$B/bin/kvdim-export" $M --spectrum "$T/s.h5" --rates "$T/r.h5" --overall-p 0.3 --dtype f32 -o "$T/folded"
v "$B/bin/kvdim-export" $M --spectrum "$T/s.h5" --method balanced,p=0.5 --rotations-only -o "$T/rotations"
v "$B/bin/kvdim-report" "$T/s.h5" "$T/sim.h5" "$T/r.h5" "$T/acc.h5" "$T/tok.h5" --no-plots -o "$T/report"
