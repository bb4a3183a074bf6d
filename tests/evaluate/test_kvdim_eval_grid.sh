#!/bin/sh
# kvdim-eval --method with several values of a key, and what the report says of them: the smallest cache within a loss.
. tests/lib/cases.sh
EVAL=$B/bin/kvdim-eval MODEL=data/models/kvdim-6m TEXT=data/texts/stories.txt

some="$MODEL --text $TEXT --tokens 256 --seq-len 64 --prompt 32 --cache f16 -q --json"
if $EVAL $some --method hetero,k=8/4,v=4/2 --method sparsity,th=0.3,tl=0.3,window=8 -o "$D/a.h5" >"$D/a.json" 2>"$D/err" &&
   $EVAL $some --method hetero,k=8,v=4 --method hetero,k=8,v=2 --method hetero,k=4,v=4 --method hetero,k=4,v=2 \
     --method sparsity,th=0.3,tl=0.3,window=8 -o "$D/b.h5" >"$D/b.json" 2>>"$D/err"; then
  for c in method settings kl cache_share; do
    values $c "$D/a.json" >"$D/a.$c"; values $c "$D/b.json" >"$D/b.$c"
    cmp -s "$D/a.$c" "$D/b.$c" || not_ok "$c of a grid" "$(diff "$D/a.$c" "$D/b.$c")"
  done
  [ "$(wc -l <"$D/a.method")" -eq 6 ] && ok "a method per combination" || not_ok "a method per combination" "$(cat "$D/a.method")"
else not_ok "a method per combination" "$(cat "$D/err")"; fi

# The printed table tells the rows of a grid and of a sweep apart, and counts bytes against a 16-bit cache.
table="$MODEL --text $TEXT --tokens 256 --seq-len 64 --prompt 32 --cache f16"
if $EVAL $table --method hetero,k=8/4,v=2 -o "$D/t.h5" >"$D/t" 2>"$D/err" && $EVAL $table --method h2o --sweep 2 -o "$D/t.h5" >"$D/u" 2>"$D/err" &&
   head -1 "$D/t" | grep -q ' B/token   cache  settings$' && grep -q ' 3072   1\.000$' "$D/t" && grep -q '^hetero .*  k=8,v=2$' "$D/t" && grep -q '^hetero .*  k=4,v=2$' "$D/t" &&
   grep -q '^B/token: .*; cache: these over an uncompressed 16-bit cache$' "$D/t" && grep -q '^settings: ' "$D/t" && grep -q '^h2o .*  heavy=0.45,recent=0.45$' "$D/u" && grep -q '^h2o .*  heavy=0.01,recent=0.01$' "$D/u"
then ok "settings and bytes in the printed table"; else not_ok "settings and bytes in the printed table" "$(cat "$D/t" "$D/u" "$D/err")"; fi

# Among rows whose loss is allowed, the fewest bytes; both from the file itself.
if ! "$PYTHON" -c 'import h5py' 2>/dev/null; then echo "skip smallest cache: python3 has no h5py"
elif "$B/bin/kvdim-report" "$D/a.h5" --no-plots -q -o "$D/r" 2>"$D/err" &&
     "$PYTHON" - "$D/a.h5" "$D/r/tables/accuracy-settings.csv" >"$D/log" 2>&1 <<'END'
import csv, sys, h5py
r = h5py.File(sys.argv[1])["rows"]
rows = [{k: (v[i].decode() if isinstance(v[i], bytes) else v[i]) for k, v in r.items() if v.ndim == 1} for i in range(len(r["method"]))]
table = list(csv.DictReader(open(sys.argv[2])))
assert len(table) == 3 and {t["series"] for t in table} == {"hetero"} and all(t["tried"] == "4" for t in table), table
hetero = [x for x in rows if x["method"] == "hetero"]
for t, kept in zip(table[:2], (lambda x: x["top1_share"] >= 0.99 and x["top1_share_hi"] >= 1, lambda x: x["top1_share"] >= 0.95)):
    best = min((x for x in hetero if kept(x)), key=lambda x: x["cache_share"], default=None)
    assert t["settings"] == (best["settings"] if best else "none of them"), (t, best)
    assert not best or abs(float(t["cache_share"]) - best["cache_share"]) < 1e-9
END
then ok "smallest cache within a loss"; else not_ok "smallest cache within a loss" "$(cat "$D/err" "$D/log")"; fi

if $EVAL $some --method hetero,k=8//4 -o "$D/x.h5" >"$D/log" 2>"$D/err"; [ $? -eq 2 ] && grep -q "'8//4' has an empty value" "$D/err"
then ok "empty value"; else not_ok "empty value" "$(cat "$D/err")"; fi

# Methods divided over an array of Slurm jobs: the page of their files has the tables of one file.
sweep="hetero,k=8,v=4/2 h2o,heavy=0.25,recent=0.25 hetero,k=4,v=4"
job() { env SLURM_ARRAY_TASK_ID="$1" SLURM_ARRAY_TASK_MAX=2 SLURM_CPUS_PER_TASK=2 KVDIM_EVAL="$EVAL" sh experiments/slurm/eval.sbatch "$D/parts" ${some% -q --json} -- $sweep; }
if job 1 2>"$D/err" && job 2 2>>"$D/err" && $EVAL ${some% --json} $(for m in $sweep; do echo "--method $m"; done) --threads 2 -o "$D/one.h5" 2>>"$D/err" &&
   "$B/bin/kvdim-report" "$D/one.h5" --no-plots -q -o "$D/r1" 2>>"$D/err" && "$B/bin/kvdim-report" "$D"/parts/part-*.h5 --no-plots -q -o "$D/r2" 2>>"$D/err"
then
  [ "$(ls "$D/parts" | tr '\n' ' ')" = "part-1.h5 part-2.h5 " ] && [ "$(wc -l <"$D/r1/tables/accuracy.csv")" -eq 6 ] && ok "a file per job" || not_ok "a file per job" "$(ls "$D/parts")"
  for t in accuracy bytes summary accuracy-settings; do cmp "$D/r1/tables/$t.csv" "$D/r2/tables/$t.csv"; done >"$D/log" 2>&1
  [ -s "$D/log" ] && not_ok "one page of all jobs" "$(cat "$D/log")" || ok "one page of all jobs"
else not_ok "a file per job" "$(cat "$D/err")"; fi
job 3 >"$D/log" 2>&1; [ $? -eq 0 ] && [ ! -e "$D/parts/part-3.h5" ] && ok "a job without methods" || not_ok "a job without methods" "$(cat "$D/log")"
