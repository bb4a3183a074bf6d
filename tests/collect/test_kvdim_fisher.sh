#!/bin/sh
# kvdim-collect --fisher and what kvdim-eval makes of it: sums against rows, the loss against perplexity, runs that stop, refusals.
# The gradients themselves are test_backward's.
. tests/lib/cases.sh
py=${PYTHON:-/usr/bin/python3}
collect=$B/bin/kvdim-collect
model=$D/tiny
"$B/tests/tool_checkpoint" "$model" || exit 1

# ---- usage ----
run="$collect $model --random 700 --seed 3 --seq-len 50 --batch 128 --threads 2 --device cpu -q"
no_output resume_is_refused 2 "--fisher cannot be used with --resume" $run --fisher --resume
no_output snapshots_are_refused 2 "--fisher cannot be used with --snapshots" $run --fisher="$D/f.h5" --moments --snapshots 100
no_output two_want_the_output 2 "--moments and --fisher both want '$D/none.h5'" $run --fisher --moments
no_output attention_wants_it_too 2 "--attention and --fisher both want '$D/none.h5'" $run --fisher --attention
no_output rows_without_fisher 2 "--fisher-rows requires --fisher" $run --fisher-rows 3
no_output output_named_twice 2 "--fisher and -o name the same file" $run --fisher="$D/none.h5"
no_output file_named_twice 2 "--fisher and --moments name the same file" $run --fisher="$D/x.h5" --moments="$D/x.h5"

# ---- a run that is stopped leaves nothing ----
"$collect" data/models/kvdim-6m --random 200000 --seq-len 512 --fisher="$D/stopped.f" -q -o "$D/stopped" 2>"$log" & pid=$!
sleep 2; kill -INT $pid; wait $pid
if [ $? -ne 0 ] && grep -q interrupted "$log" && ! ls "$D"/stopped* >/dev/null 2>&1; then echo "ok interrupted_leaves_nothing"
else echo "not ok interrupted_leaves_nothing: $(cat "$log") $(ls "$D"/stopped* 2>/dev/null)"; fi

no_output a_full_disk_names_the_file 1 "'$D/none.h5': cannot write /tokens/" \
  sh -c 'ulimit -f 400; exec "$@"' sh $run --fisher

# ---- kvdim-eval ----
EVAL="$B/bin/kvdim-eval data/models/kvdim-6m --text data/texts/stories.txt --tokens 400 --seq-len 200 --cache f16 -q"
of6m="$collect data/models/kvdim-6m --text data/texts/articles.txt --seq-len 128 -q"
check collect_both $of6m --tokens 768 --rope both --fisher="$D/6m.f.h5" -o "$D/6m.h5"
check bases "$B/bin/kvdim-spectrum" "$D/6m.h5" --pair qk,vw -q -o "$D/6m.s.h5"
column() { sed -n "s/^ *\"$1\": \"*\([^\"]*[^\",]\)\"*,*\$/\1/p" "$D/a.json"; }
if $EVAL --json --calibration "$D/6m.h5" --fisher "$D/6m.f.h5" --spectrum "$D/6m.s.h5" --method palu,p=0.6 --method palu,p=0.6,search=1 --method palu,p=0.6,search=2 \
     --method kvquant,bits=2,weights=0 --method kvquant,bits=2 --method kvquant,bits=2,weights=2 --method zack+kvquant,bits=2,p=0.2 -o "$D/a.h5" >"$D/a.json" 2>"$log"; then
  column cache_share >"$D/share"; column kl >"$D/kl"; column settings >"$D/settings"
  # Equal bytes with a search and with weights, and other predictions.
  if paste -d' ' "$D/share" "$D/kl" | awk 'NR == 2 || NR == 5 { share = $1; kl = $2 } NR > 2 && NR < 8 && NR != 5 && !($1 > 0.995 * share && $1 < 1.005 * share && $2 != kl && $2 > 0.001) { wrong = 1 } END { exit wrong || NR != 8 }'
  then echo "ok the_bytes_stay"; else echo "not ok the_bytes_stay: $(paste -s -d' ' "$D/share" "$D/kl")"; fi
  # Weights are on where squared gradients are, but after a method of the dims axis.
  if [ "$(grep -o 'weights=[0-9]' "$D/settings" | tr -d '\n')" = weights=0weights=1weights=2weights=0 ]; then echo "ok settings_say_weights"
  else echo "not ok settings_say_weights: $(cat "$D/settings")"; fi
else echo "not ok the_bytes_stay: $(cat "$log")"; fi
no_output search_without_fisher 1 "method 'palu': search=1 needs squared gradients: give --fisher" $EVAL --calibration "$D/6m.h5" --method palu,search=1
no_output weights_without_fisher 1 "method 'kvquant': weights=2 needs squared gradients: give --fisher" $EVAL --calibration "$D/6m.h5" --method kvquant,weights=2
"$collect" data/models/kvdim-6m --text data/texts/code.txt --tokens 256 --seq-len 128 --fisher --fisher-rows 0 -q -o "$D/code.f.h5"
no_output other_tokens 1 "the squared gradients are of other tokens than the calibration ('code', 256 tokens, and 'articles', 768): collect both in one run, or give weights=0" \
  $EVAL --calibration "$D/6m.h5" --fisher "$D/code.f.h5" --method kvquant
check a_search_takes_any_tokens $EVAL --calibration "$D/6m.h5" --fisher "$D/code.f.h5" --method palu,search=1 -o "$D/b.h5"
$of6m --tokens 768 --rope both --fisher="$D/few.f.h5" --fisher-rows 100 -o "$D/few.h5"
no_output few_rows 1 "squared gradients of 100 tokens one by one, 768 are read: collect them with --fisher-rows 768, or give rows=100" \
  $EVAL --calibration "$D/few.h5" --fisher "$D/few.f.h5" --method kvquant
"$collect" "$model" --random 100 --fisher -q -o "$D/tiny.f.h5"
no_output another_model 1 "are of different models" $EVAL --calibration "$D/6m.h5" --fisher "$D/tiny.f.h5" --method palu,search=1
no_output no_result 1 "holds fisher, not results: give it to kvdim-eval first" "$B/bin/kvdim-report" "$D/tiny.f.h5"
no_output not_a_fisher_file 1 "holds kvdim/activations, kvdim/fisher is wanted" $EVAL --calibration "$D/6m.h5" --fisher "$D/6m.h5" --method palu

# ---- values ----
if ! $py -c 'import h5py, numpy' 2>/dev/null; then
  echo "skip values of kvdim/fisher: python3 has no h5py and numpy"; exit 0
fi
same() { $py tests/tools/tool_compare_h5.py same "$@"; }
near() { # A.h5 B.h5 TOLERANCE: every sum
  $py - "$@" <<'END'
import sys
import h5py, numpy as np
a, b = h5py.File(sys.argv[1]), h5py.File(sys.argv[2])
for name in ["loss"] + [g + "/" + n for g in ("gradient2", "rms", "tokens", "moment") for n in a.get(g, {})]:
    x, y = a[name][()], b[name][()]
    far = np.abs(x - y).max() / np.abs(x).max()
    assert far <= float(sys.argv[3]), (name, far)
END
}
check everything_at_once $run --rope both --dtype f32 --moments="$D/m.h5" --attention="$D/t.h5" --fisher="$D/f.h5" -o "$D/d.h5"
check without_it $run --rope both --dtype f32 --moments="$D/m0.h5" --attention="$D/t0.h5" -o "$D/d0.h5"
check the_others_are_as_without same "$D/d0.h5" "$D/d.h5" "$D/m0.h5" "$D/m.h5" "$D/t0.h5" "$D/t.h5"
check alone $run --fisher -o "$D/f1.h5"
check alone_is_the_same same "$D/f.h5" "$D/f1.h5"
check one_thread_one_sequence $collect "$model" --random 700 --seed 3 --seq-len 50 --batch 1 --threads 1 --device cpu -q --fisher -o "$D/f2.h5"
check one_by_one_is_the_same near "$D/f.h5" "$D/f2.h5" 1e-4
if $collect "$model" --random 100 --device cuda --moments -q -o "$D/try.h5" 2>/dev/null; then
  gpu="$collect $model --random 700 --seed 3 --seq-len 50 --batch 128 --device cuda -q"
  check on_a_gpu $gpu --fisher -o "$D/g1.h5"
  check on_a_gpu_the_same near "$D/f.h5" "$D/g1.h5" 1e-4
  check on_a_gpu_with_a_dump $gpu --rope both --dtype f32 --moments="$D/m2.h5" --fisher="$D/g2.h5" -o "$D/d2.h5"
  check on_a_gpu_both_are_the_same same "$D/g1.h5" "$D/g2.h5"
  check on_a_gpu_one_layer $gpu --layers 1-1 --fisher -o "$D/g3.h5"
  check on_a_gpu_in_bf16 $gpu --compute bf16 --fisher -o "$D/g4.h5"
  check on_a_gpu_bf16_is_close near "$D/f.h5" "$D/g4.h5" 0.2
else echo "skip gradients on a GPU: there is none"; fi
check fewer_rows $run --fisher --fisher-rows 333 -o "$D/f3.h5"
check one_layer $run --layers 1-1 --fisher -o "$D/f4.h5"
check sums_rows_layers $py - "$D" <<'END'
import sys
import h5py, numpy as np
d = sys.argv[1]
f, few, one = (h5py.File(f"{d}/{n}.h5") for n in ("f", "f3", "f4"))
assert f["tokens/k_pre"].shape == (2, 2, 700, 16) and f["tokens/v"].shape == f["tokens/k_pre"].shape, f["tokens/v"].shape
for n in ("k_pre", "v"):
    rows = f["tokens/" + n][:].astype(float)
    assert np.allclose(rows.sum(2), f["gradient2/" + n][:], rtol=1e-5)
    assert (rows[:, :, 49::50] == 0).all() and (rows[:, :, 10] > 0).any()  # the last of a sequence predicts nothing
    assert (few["tokens/" + n][:] == f["tokens/" + n][:, :, :333]).all()
# A rotation keeps the length of a pair's gradient: k_pre and k differ, their sums do not.
assert not np.allclose(f["gradient2/k"][:], f["gradient2/k_pre"][:], rtol=1e-3)
assert np.allclose(f["gradient2/k"][:].sum(2), f["gradient2/k_pre"][:].sum(2), rtol=1e-4)
for g in ("gradient2", "rms", "tokens"):
    for n in f[g]:
        assert (one[g][n][0] == f[g][n][1]).all(), n
assert one.attrs["first_layer"] == 1
for n in ("w_k", "w_v"):  # the mean of roots is below the root of the mean
    square = f["gradient2/" + n][:] / (16 * f["/model"].attrs["d_model"] * f.attrs["n_sequences"])
    assert (f["rms/" + n][:] < np.sqrt(square)).all() and (f["rms/" + n][:] > 0.2 * np.sqrt(square)).all()
END
check evaluate_the_same_text "$B/bin/kvdim-eval" data/models/kvdim-6m --text data/texts/articles.txt --tokens 768 --seq-len 128 --method none -q -o "$D/e.h5"
check loss_is_that_of_perplexity $py - "$D" <<'END'
import sys
import h5py, numpy as np
f, e = h5py.File(sys.argv[1] + "/6m.f.h5"), h5py.File(sys.argv[1] + "/e.h5")
mean = f["loss"][()] / (f.attrs["n_tokens"] - f.attrs["n_sequences"])
assert abs(np.exp(mean) / e["rows/perplexity"][0] - 1) < 1e-5, (np.exp(mean), e["rows/perplexity"][0])
END
for m in falcon-40b opt-after qwen3-mqa phi3-window; do
  check run_of_$m "$collect" tests/data/families/$m --random 300 --seed 3 --seq-len 30 --batch 64 --fisher -q -o "$D/w.h5"
done
check h5_says_what_it_is $py - "$D/f.h5" <<'END'
import sys
import h5py
f = h5py.File(sys.argv[1])
f.visititems(lambda n, o: None if not isinstance(o, h5py.Dataset) or (o.attrs["long_name"] and o.attrs["units"]) else 1 / 0)
assert f.attrs["schema"] == b"kvdim/fisher" or f.attrs["schema"] == "kvdim/fisher"
END
damage() { # NAME MESSAGE PYTHON: a changed copy is refused
  cp "$D/6m.f.h5" "$D/bad.h5"
  $py -c "import h5py, numpy as np; f = h5py.File('$D/bad.h5', 'r+'); $3"
  no_output "$1" 1 "$2" $EVAL --calibration "$D/6m.h5" --fisher "$D/bad.h5" --method palu,search=1
}
damage a_negative_sum "/gradient2/v: number 3 is -1, below 0" "f['gradient2/v'][0, 0, 3] = -1"
damage a_nan "/rms/w_k[0][1] is nan" "f['rms/w_k'][0, 1] = np.nan"
damage a_missing_sum "/rms/w_v" "del f['rms/w_v']"
damage more_rows_than_tokens "has 768 tokens of 20" "f.attrs['n_tokens'] = 20; f.attrs['n_sequences'] = 2"
