#!/bin/sh
# kvdim-collect --attention and kvdim-tokens: every number against NumPy in double precision, runs that are killed, files with wrong contents.
. tests/lib/cases.sh
py=${PYTHON:-/usr/bin/python3}
collect=$B/bin/kvdim-collect
tokens=$B/bin/kvdim-tokens
model=$D/tiny
"$B/tests/tool_checkpoint" "$model" || exit 1

# ---- usage, which needs no HDF5 reader ----
run="$collect $model --random 700 --seed 3 --seq-len 50 --batch 128 --threads 2 -q"
no_output cuda_is_refused 2 "--attention requires --device cpu" $run --attention --device cuda
no_output two_want_the_output 2 "both want '$D/none.h5'" $run --attention --moments
no_output requests_without_attention 2 "--attention-requests requires --attention" $run --attention-requests 3
no_output output_named_twice 2 "--attention and -o name the same file" $run --attention="$D/none.h5"
no_output file_named_twice 2 "--attention and --moments name the same file" $run --attention="$D/x.h5" --moments="$D/x.h5"
no_output requests_zero 2 "--attention-requests" $run --attention --attention-requests 0
no_output tokens_without_input 2 "no ATTENTION.h5 given" "$tokens"
no_output tokens_share 2 "--share" "$tokens" x.h5 --share 0.6

if ! $py -c 'import h5py, numpy' 2>/dev/null; then
  echo "skip kvdim_attention: python3 has no h5py and numpy"; exit 0
fi
compare="$py tests/tools/tool_compare_attention.py"
same_dump() { $py tests/tools/tool_compare_h5.py same "$@"; }

# ---- values ----
check everything_at_once $run --rope both --dtype f32 --moments="$D/m.h5" --attention="$D/a.h5" --attention-requests 3 -o "$D/d.h5"
check agrees_with_numpy $compare oracle "$D/d.h5" "$D/a.h5"
check is_described $compare described "$D/a.h5"
check without_attention $run --rope both --dtype f32 --moments="$D/m0.h5" -o "$D/d0.h5"
check dump_and_moments_are_as_without same_dump "$D/d0.h5" "$D/d.h5" "$D/m0.h5" "$D/m.h5"
check alone $run --attention --attention-requests 3 -o "$D/a1.h5"
check alone_is_the_same $compare same "$D/a.h5" "$D/a1.h5"
check beside_the_moments $run --moments --attention="$D/a2.h5" --attention-requests 3 -o "$D/m2.h5"
check beside_the_moments_is_the_same $compare same "$D/a.h5" "$D/a2.h5"
check moments_beside_it $run --rope both --moments="$D/m3.h5" --attention --attention-requests 3 -o "$D/a3.h5"
check moments_beside_it_are_the_same same_dump "$D/m0.h5" "$D/m3.h5"
for m in mistral-window phi3-window qwen2-window qwen3-mqa opt-before; do
  check run_of_$m "$collect" tests/data/families/$m --random 300 --seed 3 --seq-len 30 --batch 64 --dtype f32 --attention="$D/w.h5" -q -o "$D/w.d.h5"
  case $m in *window) check ${m}_has_its_window $py -c "import h5py; assert h5py.File('$D/w.h5')['window'][:].max() > 0" ;; esac
  check ${m}_agrees_with_numpy $compare oracle "$D/w.d.h5" "$D/w.h5"
done
check one_layer $run --layers 1-1 --dtype f32 --attention="$D/l.h5" -o "$D/l.d.h5"
check one_layer_agrees_with_numpy $compare oracle "$D/l.d.h5" "$D/l.h5"
# Longer sequences than a block of rows.
check long_run "$collect" data/models/kvdim-6m --random 900 --seq-len 300 --layers 0-1 --dtype f32 --attention="$D/b.h5" -q -o "$D/b.d.h5"
check long_agrees_with_numpy $compare oracle "$D/b.d.h5" "$D/b.h5"

# ---- threads, batches, number of tokens ----
for t in 1 2; do
  for b in 50 700; do
    $collect $model --random 700 --seed 3 --seq-len 50 --batch $b --threads $t --attention --attention-requests 3 -q -o "$D/t.h5"
    check threads_${t}_batch_$b $compare close "$D/a.h5" "$D/t.h5"
  done
done
$collect $model --random 7000 --seed 3 --seq-len 50 --attention --attention-requests 3 -q -o "$D/more.h5"
check size_is_constant $py -c "
import h5py
def shapes(path):
    out = {}
    h5py.File(path).visititems(lambda n, o: out.update({n: o.shape}) if isinstance(o, h5py.Dataset) else None)
    return out
assert shapes('$D/a.h5') == shapes('$D/more.h5')"

# ---- snapshots, kill -9, resume ----
snap="$collect $model --random 700 --seed 3 --seq-len 50 --batch 100 --threads 2 -q"
$snap --moments --attention="$D/s0.a.h5" -o "$D/s0.h5"
check snapshots_beside $snap --moments --attention="$D/s.a.h5" --snapshots 50,120,350 -o "$D/s.h5"
check snapshots_leave_it_alone $compare same "$D/s0.a.h5" "$D/s.a.h5"
slow="$collect $model --random 6000 --seq-len 40 --batch 40 --threads 1 -q"
$slow --moments="$D/r0.m" --attention="$D/r0.a" -o "$D/r0"
$slow --save-every 0 --moments="$D/r.m" --attention="$D/r.a" -o "$D/r" & pid=$!
for i in $(seq 1000); do [ -e "$D/r.state" ] && break; sleep 0.01; done
kill -9 $pid 2>/dev/null; wait $pid 2>/dev/null
check killed_leaves_a_state test -e "$D/r.state"
check another_number_of_requests sh -c "! $slow --moments=$D/r.m --attention=$D/r.a --attention-requests 4 --resume -o $D/r 2>$D/said && grep -qF \"attention-requests was '16', is now '4'\" $D/said"
check resume_goes_on $slow --moments="$D/r.m" --attention="$D/r.a" --resume -o "$D/r"
check resumed_is_undisturbed $compare same "$D/r0.a" "$D/r.a"
check resumed_dump_too same_dump "$D/r0" "$D/r" "$D/r0.m" "$D/r.m"
$slow --save-every 0 --attention -o "$D/ra" 2>"$log" & pid=$!
for i in $(seq 1000); do [ -e "$D/ra.state" ] && break; sleep 0.01; done
kill -INT $pid 2>/dev/null; wait $pid 2>/dev/null
check alone_resumes $slow --attention --resume -o "$D/ra"
check alone_resumed_is_undisturbed $compare same "$D/r0.a" "$D/ra"
check done_is_done sh -c "$slow --attention --resume -o $D/ra 2>&1 | grep -q 'is complete: nothing to do'"

# ---- kvdim-tokens ----
check tokens "$tokens" "$D/a.h5" -q --group-overlap 0.3 -o "$D/k.h5"
check tokens_agree_with_numpy $compare tokens "$D/a.h5" "$D/k.h5"
check tokens_are_described $compare described "$D/k.h5"
check tokens_of_windows "$tokens" "$D/w.h5" -q --share 0.2 -o "$D/kw.h5"
check tokens_of_windows_agree $compare tokens "$D/w.h5" "$D/kw.h5"
$collect $model --random 420 --seed 4 --seq-len 50 --attention --attention-requests 2 -q -o "$D/other.h5"
check tokens_of_another "$tokens" "$D/other.h5" -q -o "$D/k1.h5"
check tokens_of_both "$tokens" "$D/a.h5" "$D/other.h5" -q -o "$D/k2.h5"
check tokens_of_both_are_added $compare added "$D/k.h5" "$D/k1.h5" "$D/k2.h5"
no_output same_texts_twice 1 "'$D/a.h5' and '$D/a1.h5' are of the same texts" "$tokens" "$D/a.h5" "$D/other.h5" "$D/a1.h5"
check tokens_json sh -c "$tokens $D/a.h5 --json -o $D/kj.h5 | $py -c 'import json, sys; j = json.load(sys.stdin); assert j[\"requests_kept\"] == 3 and len(j[\"overlap\"][\"mass\"][\"by_distance\"]) == len(j[\"score_min\"]) - 1'"
check tokens_print sh -c "$tokens $D/a.h5 -o $D/kp.h5 | grep -q '14 requests (random), 3 of them token by token'"
check tokens_legend sh -c "$tokens $D/a.h5 -o $D/kp.h5 | grep -q '^received: spread of the attention that tokens receive'"

# ---- the report: its measures from the file ----
report=$B/bin/kvdim-report
"$collect" data/models/kvdim-6m --text data/texts/articles.txt --tokens 1024 --seq-len 128 --attention -q -o "$D/6m.a.h5"
check tokens_6m "$tokens" "$D/6m.a.h5" -q -o "$D/6m.h5"
"$report" "$D/6m.h5" --no-plots --json -o "$D/report" >"$D/report.json" 2>"$log"
check ledger_of_tokens $py -c "
import h5py, json, numpy as np
f = h5py.File('$D/6m.h5')
j = {e['id']: e for e in json.load(open('$D/report.json'))['ledger']}
width = f['scores/max'][:] - f['scores/min'][:]
layer, kv = f['critical/layer/mean'][1], f['critical/kv_head/mean'][1]
want = {'ZDC Fig. 6': 100 * width[-1] / width[0],
        'LeanKV Fig. 1 (attention)': f['received/decades'][:].mean(), 'LeanKV Fig. 1 (norms)': f['values/decades'][:].max(),
        'LeanKV Fig. 2': layer.max() / layer.min(), 'LeanKV Fig. 3': (kv.max(1) / kv.min(1)).mean()}
for name, x in want.items():
    assert j[name]['values'] == 1 and abs(j[name]['least'] - x) < 1e-9 * abs(x), (name, j[name], x)
# Tokens ranked by their mean score as a query. Without a model with random weights there is no null.
assert f.attrs['measures'].decode().split(',')[0] == 'score'
for name, of in (('ZDC Fig. 7', 'unimportant'), ('ZDC Fig. 8', 'important')):
    x = 100 * np.diag(f['overlap/' + of][0], 1).mean()
    assert j[name]['values'] == 1 and abs(j[name]['least'] - x) < 1e-9 * x, (name, j[name], x)
assert j['ZDC Fig. 8']['verdict'] == 'cannot tell', j['ZDC Fig. 8']"
"$collect" data/models/kvdim-6m --untrained 1 --text data/texts/articles.txt --tokens 1024 --seq-len 128 --label seed-1 --attention -q -o "$D/6m.u.a.h5"
"$tokens" "$D/6m.u.a.h5" -q -o "$D/6m.u.h5"
"$report" "$D/6m.h5" "$D/6m.u.h5" --no-plots --json -o "$D/report2" >"$D/report2.json" 2>"$log"
check untrained_is_the_null $py -c "
import json
a, b = ({e['id']: e for e in json.load(open('$D/' + n))['ledger']} for n in ('report.json', 'report2.json'))
for name in ('ZDC Fig. 6', 'ZDC Fig. 7', 'ZDC Fig. 8', 'LeanKV Fig. 2', 'LeanKV Fig. 3'):
    assert b[name]['values'] == 1 and b[name]['least'] == a[name]['least'], (name, b[name])
assert b['ZDC Fig. 8']['verdict'] == 'holds', b['ZDC Fig. 8']"
check report_tables sh -c "test $(wc -l <"$D/report/tables/tokens-layers.csv") -eq 7 && test $(wc -l <"$D/report/tables/tokens-pairs.csv") -eq 91"
if command -v gnuplot >/dev/null; then
  check report_figures sh -c "$report $D/6m.h5 $D/k.h5 -q -o $D/drawn && ls $D/drawn/figures/zdc-fig06-scores.svg $D/drawn/figures/zdc-fig07-08-overlap.svg $D/drawn/figures/leankv-fig01-spread.svg $D/drawn/figures/leankv-fig02-03-critical.svg"
  "$tokens" "$D/l.h5" -q -o "$D/kl.h5"
  check report_of_one_layer "$report" "$D/kl.h5" -q -o "$D/one"
fi
lie_tokens() { # NAME MESSAGE PYTHON
  cp "$D/k.h5" "$D/lie.h5"
  $py -c "
import h5py, numpy as np
with h5py.File('$D/lie.h5', 'r+') as f:
    $3" 2>"$log" || { echo "not ok lie_tokens_$1: $(tail -1 "$log")"; return; }
  no_output "lie_tokens_$1" 1 "$2" "$report" --no-plots "$D/lie.h5"
}
lie_tokens overlap "of /overlap/important is 1.5" "f['overlap/important'][0, 0, 1] = 1.5"
lie_tokens count "of /critical/layer/mean is 51" "f['critical/layer/mean'][0, 0] = 51"
lie_tokens nan "/scores/mean[1] is nan" "f['scores/mean'][1] = np.nan"
lie_tokens measures "/measures is 'mass', should be 'score,score-as-key,denominator" "f.attrs['measures'] = 'mass'"
lie_tokens share "share is 0" "f.attrs['share'] = 0.0"
lie_tokens layers "has 9 layers" "del f['scores/min']; f['scores/min'] = np.zeros(9)"
no_output report_of_attention 1 "give it to kvdim-tokens first" "$report" --no-plots "$D/a.h5"

# ---- files with wrong contents ----
lie() { # NAME MESSAGE PYTHON: f is a copy of a.h5
  cp "$D/a.h5" "$D/lie.h5"
  $py -c "
import h5py, numpy as np
with h5py.File('$D/lie.h5', 'r+') as f:
    $3" 2>"$log" || { echo "not ok lie_$1: $(tail -1 "$log")"; return; }
  no_output "lie_$1" 1 "$2" "$tokens" "$D/lie.h5"
}
lie total "/scores/histogram[0][1] holds 17851 values, should hold 17850" "f['scores/histogram'][0, 1, 7] += 1"
lie probability_total "/probabilities/histogram[0][0] holds" "f['probabilities/histogram'][1, 0, 300] += 1"
lie overflow "/values/histogram[0][0] overflows" "f['values/histogram'][0, 0, :2] = 2**63"
lie received_total "/received/histogram[0][0] holds" "f['received/histogram'][0, 0, 200] += 1"
lie nan "/requests/mass[0][1][3] is nan" "f['requests/mass'][0, 1, 3] = np.nan"
lie infinite "/log_denominators/max[1][0] is infinite" "f['log_denominators/max'][1, 0] = np.inf"
lie range "/scores/min is 1e+09 where /scores/max is" "f['scores/min'][0, 0] = 1e9"
lie count "/critical/head/count_sum and the other statistics of this kind cannot be" "f['critical/head/count_min'][0, 0, 0] = 0"
lie count_squares "/critical/kv_head/count_sum and the other statistics of this kind cannot be" "f['critical/kv_head/count_sum_squares'][0, 0, 0] = 1"
lie count_squares_above "/critical/layer/count_sum and the other statistics of this kind cannot be" "f['critical/layer/count_sum_squares'][0, 0] = 2**62"
lie length "/requests/length[1] is 51" "f['requests/length'][1] = 51"
lie positions "/requests/at_position" "f['requests/at_position'][3] = 15"
lie edges "/bins/score[5] is" "f['bins/score'][5] += 0.5"
lie levels "/levels[1] is 0.5, should be 0.95" "f['levels'][1] = 0.5"
lie window "should hold" "f['window'][0] = 5"
lie missing "/scores/sum" "del f['scores/sum']"
lie shape "/values/sum" "del f['values/sum']; f['values/sum'] = np.zeros((2, 3))"
lie type "/scores/histogram" "d = f['scores/histogram'][:] - 0.0; del f['scores/histogram']; f['scores/histogram'] = -d"
lie huge "seq_len" "f.attrs['seq_len'] = 2**40"
lie kept "requests are kept, of 14" "del f['requests/length']; f['requests/length'] = np.zeros(15, 'u8')"
lie newer "has version 2 of kvdim/attention" "f.attrs['schema_version'] = 2"
head -c 20000 "$D/a.h5" >"$D/cut.h5"
no_output cut_short 1 "is cut short" "$tokens" "$D/cut.h5"
no_output moments_are_no_attention 1 "holds kvdim/moments, kvdim/attention is wanted" "$tokens" "$D/m.h5"
no_output other_model 1 "are of different models" "$tokens" "$D/a.h5" "$D/w.h5"
no_output other_layers 1 "have different layers" "$tokens" "$D/a.h5" "$D/l.h5"
$collect $model --random 700 --seq-len 40 --attention -q -o "$D/short.h5"
no_output other_seq_len 1 "have different seq_len: 50 and 40" "$tokens" "$D/a.h5" "$D/short.h5"
