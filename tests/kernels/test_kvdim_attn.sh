#!/bin/sh
# kvdim-attn: cases, checks, the file, what it refuses. On the CPU, so tiny.
. tests/lib/cases.sh
needs h5dump hdf5-tools
attn="$B/bin/kvdim-attn"
small="--heads 4 --kv-heads 2 --d-head 32 --samples 3 --warmup 1 --hot --threads 2"

# ---- a sweep --------------------------------------------------------------------------------------
printf 'd_qk,d_v\n16,32\n8,16\n' >"$D/w-p40.csv"
check "both phases, ref and cpu" "$attn" $small --phase prefill,decode --impl ref,cpu --dims 32 --dims "$D/w-p40.csv" --dims 7:5,9 \
  --size 1x40,3x17 --ragged lognormal -o "$D/a.h5"
cp "$D/log" "$D/table"
[ "$(grep -c '^prefill\|^decode' "$D/table")" -eq 24 ] && ! grep -q WRONG "$D/table" && ok "a line per row, none wrong" || { cp "$D/table" "$D/log"; not_ok "a line per row, none wrong"; }
is "no nan in the table" 0 "$(grep -ci nan "$D/table")"
is "rows of a case stand together" "0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7 8 8 9 9 10 10 11 11" "$(column "$D/a.h5" case | sed 's/^ //; s/ $//')"
h5dump -a /cases_done "$D/a.h5" | grep -q '): 12' && h5dump -a /cases "$D/a.h5" | grep -q '): 12' && ok "counts cases" || not_ok "counts cases"
# p of 16:32, 8:16 in 32: 1 - 72 / 128.
case "$(column "$D/a.h5" p)" in *" 0 0 0.4375 0.4375 "*) ok "p comes from the widths" ;; *) column "$D/a.h5" p >"$D/log"; not_ok "p comes from the widths" ;; esac
h5dump -H -d /rows/samples_us "$D/a.h5" | grep -q '( 24, 3 ) / ( 24, 3 )' && ok "every sample is kept" || not_ok "every sample is kept"
h5dump -a '/parameters/widths[1]' "$D/a.h5" | grep -q '"16:32,8:16"' && ok "widths are recorded" || not_ok "widths are recorded"
column "$D/a.h5" widths | grep -q 'w-p40' && ok "a list is called by its file" || not_ok "a list is called by its file"

check "sharp data" "$attn" $small --phase prefill --impl cpu --data sharp --seq-len 130 --dims 32 -o "$D/s.h5"
check "cold, sampled rows" "$attn" --heads 4 --kv-heads 2 --d-head 32 --samples 3 --warmup 1 --threads 2 --phase decode --impl cpu --cold --check rows --batch 2 --seq-len 100 -o "$D/c.h5"
printf '5\n64\n1\n' >"$D/lengths.csv"
check "lengths from a file" "$attn" $small --phase decode --impl cpu --lengths "$D/lengths.csv" --json -o "$D/l.h5"
grep -q '"kv_tokens": 70' "$D/log" && grep -q '"lengths": "file"' "$D/log" && ok "and their sum" || not_ok "and their sum"
check "no check" "$attn" $small --phase decode --impl ref --check none --seq-len 10 -q -o "$D/n.h5"
[ -s "$D/log" ] && not_ok "quiet says nothing" || ok "quiet says nothing"
"$attn" --list >"$D/log" 2>&1 && grep -q '^cpu .*prefill,decode.*f32' "$D/log" && ok "list" || not_ok "list"

# The numbers against each other, by NumPy.
if "$PYTHON" -c 'import h5py, numpy' 2>/dev/null; then
  check "columns agree with samples and with each other" "$PYTHON" tests/oracle/results.py kernels "$D/a.h5" "$D/c.h5"
else
  echo "skip columns agree with samples and with each other: no h5py for $PYTHON"
fi

# ---- widths from kvdim-fit ---------------------------------------------------------------------------
"$B/tests/tool_synthetic" moments "$D/m.h5" 300 1 && "$B/bin/kvdim-spectrum" "$D/m.h5" --pair qk,vw -q -o "$D/sp.h5" &&
  "$B/bin/kvdim-fit" "$D/sp.h5" --overall-p 0,0.25,0.5 -q -o "$D/r.h5" || { echo "not ok cannot make rates"; exit 1; }
check "widths of a rates file" "$attn" --heads 4 --kv-heads 4 --samples 2 --warmup 0 --hot --threads 2 --phase decode --impl cpu --rates "$D/r.h5" --layer 1 \
  --seq-len 20 -o "$D/rates.h5"
is "one case a point" "3" "$(grep -c ^decode "$D/log")"
# d_head is 8 there: padded to 16 it is 8 again, so nothing is removed.
is "padded widths" "0 0 0" "$(column "$D/rates.h5" p | sed 's/^ //; s/ $//')"
h5dump -a /provenance/inputs/0/schema "$D/rates.h5" | grep -q kvdim/rates && ok "the rates file is an input" || not_ok "the rates file is an input"
refused "a p that is not there" 1 "--overall-p 0.9: the nearest point of" "$attn" $small --phase decode --impl cpu --rates "$D/r.h5" --d-head 8 --overall-p 0.9 -o "$D/x.h5"
refused "another d_head" 1 "has d_head 8, --d-head is 32" "$attn" $small --phase decode --impl cpu --rates "$D/r.h5" -o "$D/x.h5"
refused "a layer that is not there" 1 "--layer 9:" "$attn" $small --d-head 8 --phase decode --impl cpu --rates "$D/r.h5" --layer 9 -o "$D/x.h5"
refused "a spectrum is no rates file" 1 "holds kvdim/spectrum, kvdim/rates is wanted" "$attn" $small --phase decode --impl cpu --rates "$D/sp.h5" -o "$D/x.h5"

# ---- the device --------------------------------------------------------------------------------------
if "$attn" --device cuda --impl cpu --phase decode --seq-len 8 $small -q -o "$D/x.h5" 2>"$D/log"; then
  echo "skip without a GPU: there is one"
else
  grep -q -- '--device cuda: no CUDA' "$D/log" && ok "cuda without a GPU" || not_ok "cuda without a GPU"
  "$attn" $small --phase decode --seq-len 8 -o "$D/auto.h5" >"$D/log" 2>&1 && grep -q 'no CUDA.*timing the CPU' "$D/log" && ok "auto falls on the CPU and says so" || not_ok "auto falls on the CPU and says so"
  "$attn" $small --impl cuda --phase decode --seq-len 8 -o "$D/x.h5" >"$D/log" 2>&1; [ $? -ne 0 ] && grep -q "'cuda' .*CUDA" "$D/log" && ok "cuda asked for" || not_ok "cuda asked for"
fi
rm -f "$D/x.h5"

# ---- refusals ------------------------------------------------------------------------------------------
a="$attn --phase decode"
refused "no phase" 2 "no --phase given" "$attn" -o "$D/x.h5"
refused "no output" 2 "no -o OUT.h5 given" $a
refused "an unknown implementation" 2 "--impl: 'magic' is none of ref, cpu" $a --impl magic -o "$D/x.h5"
refused "an implementation twice" 2 "--impl: cpu is given twice" $a --impl cpu,cpu -o "$D/x.h5"
refused "a size twice" 2 "--size: 1x64 is given twice" "$B/bin/kvdim-attn" --phase decode --size 1x64,2x64,01x64 -o "$D/x.h5"
refused "an unknown schedule" 2 "--schedule: 'best' is none of none, papers, ours" $a --schedule best -o "$D/x.h5"
refused "an unknown type" 2 "--dtype: 'fp8' is none of f32, f16, bf16" $a --dtype fp8 -o "$D/x.h5"
refused "heads that do not divide" 2 "--heads 6 is not a multiple of --kv-heads 4" $a --heads 6 --kv-heads 4 -o "$D/x.h5"
refused "a size" 2 "--size: '64' is not of the form 64x8192" $a --size 64 -o "$D/x.h5"
refused "sizes in two ways" 2 "--size cannot be used with --batch" $a --size 1x1 --batch 1 -o "$D/x.h5"
refused "lengths in two ways" 2 "--lengths cannot be used with --batch" $a --lengths "$D/lengths.csv" --batch 1 -o "$D/x.h5"
refused "layer without rates" 2 "--layer requires --rates" $a --layer 1 -o "$D/x.h5"
refused "a type that nothing takes" 1 "nothing was timed" $a $small --impl cpu --dtype bf16 --seq-len 8 -o "$D/x.h5"
grep -q 'left out cpu: does not take bf16' "$D/log" && ok "and why" || not_ok "and why"
refused "a width beyond d_head" 1 "'64' is not within 1 .. 32" $a $small --impl cpu --dims 64 -o "$D/x.h5"
printf '5\n-1\n' >"$D/bad.csv"
refused "a bad length" 1 "'-1' is not a whole number" $a --impl cpu --lengths "$D/bad.csv" -o "$D/x.h5"
printf '5\n64\0001\n' >"$D/bad.csv"
refused "a zero byte in a length" 1 "bad.csv' row 2: field 1 has a zero byte" $a --impl cpu --lengths "$D/bad.csv" -o "$D/x.h5"
printf 'd_qk,d_v\n16\0001,16\n' >"$D/bad.csv"
refused "a zero byte in a width" 1 "bad.csv' row 2: field 1 has a zero byte" $a $small --impl cpu --seq-len 8 --dims "$D/bad.csv" -o "$D/x.h5"
refused "too many tokens" 1 "more than kernels can count" $a --impl cpu --size 60000x100000 -o "$D/x.h5"
refused "a place that cannot be written" 1 "cannot write '/dev/full'" $a $small --impl cpu --seq-len 8 --dims 16 -o /dev/full
grep -q 'cases are in' "$D/log" && not_ok "and claims no case" || ok "and claims no case"
[ ! -e "$D/x.h5" ] && ok "failures leave nothing" || not_ok "failures leave nothing"

# ---- interrupted: what is done is there -----------------------------------------------------------------
"$attn" $small --phase decode --impl ref --seq-len 8,200000 --samples 300 --check none -o "$D/i.h5" >"$D/log" 2>&1 &
pid=$!
i=0
while [ ! -e "$D/i.h5" ] && [ $i -lt 600 ]; do sleep 0.05; i=$((i + 1)); done
kill -INT $pid; wait $pid; got=$?
[ $got -eq 1 ] && grep -q '1 of 2 cases are in .*interrupted' "$D/log" && h5dump -a /cases_done "$D/i.h5" | grep -q '): 1' && ok "interrupted" || { echo "status $got" >>"$D/log"; not_ok "interrupted"; }

check "an interrupted sweep in the report" sh -c '"$1/bin/kvdim-report" "$2/i.h5" --no-plots -q -o "$2/part" &&
  grep -q "i.h5 holds 1 of the 2 points of its sweep" "$2/part/index.html"' - "$B" "$D"

# ---- the report -----------------------------------------------------------------------------------------
check "the report takes it" "$B/bin/kvdim-report" "$D/a.h5" "$D/c.h5" --no-plots -q -o "$D/report"
grep -q 'Attention kernels' "$D/report/index.html" && [ "$(wc -l <"$D/report/tables/kernels.csv")" -eq 26 ] && ok "a row each" || not_ok "a row each"
