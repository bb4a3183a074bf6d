#!/bin/sh
# kvdim-sensitivity and what reads it: the file, repeats, a GPU against the CPU, method fisher against zack, kvdim-fit --by-loss, --by-text,
# --points-only.
. tests/lib/cases.sh
MODEL=data/models/kvdim-6m
fails() { # name status words command...
  name=$1 want=$2 words=$3; shift 3
  "$@" -q -o "$D/none.h5" >"$D/log" 2>&1; got=$?
  if [ $got -eq "$want" ] && grep -q -- "$words" "$D/log"; then ok "$name"; else not_ok "$name" "status $got: $(cat "$D/log")"; fi
}
anywhere="$B/bin/kvdim-sensitivity $MODEL --text data/texts/articles.txt --text data/texts/code.txt --by-text --tokens 1024 --seq-len 256"
sense="$anywhere --device cpu"

$sense -q --json -o "$D/f.h5" >"$D/f.json" && ok "runs" || not_ok "runs"
$sense -q --batch 512 -o "$D/again.h5" && $sense -q --seed 2 -o "$D/other.h5" || not_ok "runs again"
"$B/bin/kvdim-collect" $MODEL --text data/texts/articles.txt --tokens 1024 --seq-len 256 --moments --device cpu -q -o "$D/a.h5" &&
  "$B/bin/kvdim-collect" $MODEL --text data/texts/code.txt --tokens 1024 --seq-len 256 --moments --device cpu -q -o "$D/c.h5" &&
  "$B/bin/kvdim-spectrum" "$D/a.h5" "$D/c.h5" --pair qk,vw,bqk,bvw --label both -q -o "$D/s.h5" || not_ok "spectrum"

fails "pair of gradients from rows" 2 "needs gradients, which kvdim-sensitivity computes" "$B/bin/kvdim-spectrum" "$D/a.h5" --pair fqk,fvw
fails "ranks=loss of another method" 2 "ranks=loss requires method fisher" "$B/bin/kvdim-eval" $MODEL --text data/texts/stories.txt --method zack,p=0.5,ranks=loss
fails "r with ranks=loss" 2 "ranks=loss takes p" "$B/bin/kvdim-eval" $MODEL --text data/texts/stories.txt --method fisher,r=0.5,ranks=loss
fails "widths by loss from other pairs" 1 "it requires pairs fqk and fvw" "$B/bin/kvdim-fit" "$D/s.h5" --pair qk,vw --overall-p 0.5 --by-loss
fails "by loss without p" 2 "--by-loss requires --overall-p" "$B/bin/kvdim-fit" "$D/f.h5" --removal-rate 0.5 --by-loss
fails "bf16 on the CPU" 1 "compute bf16 needs a GPU, and this run has none" $sense --compute bf16
fails "another type" 2 "--compute: 'f16' is none of f32, bf16" $sense --compute f16
if $anywhere --device cuda -q --json -o "$D/g.h5" >"$D/g.json" 2>"$D/log"; then
  $anywhere --device cuda --compute bf16 -q --json -o "$D/gb.h5" >"$D/gb.json" && ok "on a GPU" || not_ok "on a GPU, bf16"
else
  rm -f "$D/g.json"
  grep -q 'no CUDA' "$D/log" && echo "skip on a GPU: $(sed 's/.*cuda: //' "$D/log")" || not_ok "on a GPU" "$(cat "$D/log")"
fi
fails "by text of one text" 2 "--by-text requires at least two texts" "$B/bin/kvdim-eval" $MODEL --text data/texts/stories.txt --by-text
fails "fields for some texts" 2 "--field is given 2 times for 3 texts" "$B/bin/kvdim-eval" $MODEL --text data/texts/stories.txt --text a --text b --field x --field y
fails "points only without target" 2 "--points-only requires --target" "$B/bin/kvdim-eval" $MODEL --text data/texts/stories.txt --points-only

"$B/bin/kvdim-fit" "$D/f.h5" --overall-p 0.3 --by-loss -q -o "$D/r.h5" || not_ok "kvdim-fit --by-loss"
eval="$B/bin/kvdim-eval $MODEL --device cpu --seq-len 256 --tokens 512 --spectrum $D/s.h5 --spectrum $D/f.h5"
methods="--method zack,p=0.15 --method zack,p=0.3 --method fisher,p=0.15,ranks=loss --method fisher,p=0.3,ranks=loss"
$eval --text data/texts/stories.txt --text data/texts/reviews.txt --by-text $methods --target 0.97 --points-only -o "$D/e.h5" >"$D/e.txt" 2>"$D/log" &&
  grep -q '^fisher-loss against zack: p = ' "$D/e.txt" && ok "by text" || not_ok "by text" "$(cat "$D/e.txt" "$D/log")"
$eval --text data/texts/stories.txt $methods -q -o "$D/e1.h5" && $eval --text data/texts/reviews.txt $methods -q -o "$D/e2.h5" || not_ok "texts alone"
$eval --text data/texts/stories.txt --method fisher --rates "$D/r.h5" -q -o "$D/er.h5" || not_ok "rates by loss"
if ! $PYTHON -c "import h5py, numpy" 2>/dev/null; then echo "skip numbers: no h5py"; exit 0; fi
$PYTHON - "$D" <<'PY' >"$D/log" 2>&1
import json, os, sys, h5py, numpy as np
D = sys.argv[1]
f, again, other = (h5py.File(D + n) for n in ('/f.h5', '/again.h5', '/other.h5'))
sigma = [f[p + '/sigma'][:] for p in ('fqk', 'fvw')]
assert f.attrs['n_tokens'] == 2048 and f['fqk'].attrs['n_rows'] == 1 and sigma[0].shape == (6, 2, 64)
for i, p in enumerate(('fqk', 'fvw')): # batches change rounding alone, the seed the tokens that are drawn
    assert np.allclose(sigma[i], again[p + '/sigma'][:], rtol=1e-3, atol=1e-6 * sigma[i].max())
    assert np.abs(sigma[i][..., 0] / other[p + '/sigma'][..., 0] - 1).max() > 1e-3
# The printed prediction, from the file.
said = {round(x['p'], 1): x['predicted_kl'] for x in json.load(open(D + '/f.json'))['by_loss']}
tail = np.sort(np.concatenate([s[..., 1:].ravel() for s in sigma]))
for p, kl in said.items():
    gone = int(np.ceil(p * 2 * sigma[0].size / 1 - 1e-9))
    assert np.isclose((tail[:gone] ** 2).sum() / 2, kl, rtol=1e-12), p
if os.path.exists(D + '/g.json'): # drawn tokens are the same but for ties of rounding, of which there are more in bf16
    for name, most, top in (('g', 3e-3, 1e-2), ('gb', 0.1, 0.1)):
        g = h5py.File(D + '/%s.h5' % name)
        by_loss = json.load(open(D + '/%s.json' % name))['by_loss']
        far = max(abs(x['predicted_kl'] / said[round(x['p'], 1)] - 1) for x in by_loss)
        assert len(by_loss) == len(said) and far < most, (name, far)
        print(name, 'predicted kl off by', far, 'largest sigma by', end=' ')
        far = max(np.abs(g[p + '/sigma'][..., 0] / s[..., 0] - 1).max() for p, s in zip(('fqk', 'fvw'), sigma))
        print(far, g['parameters'].attrs['device'], g['parameters'].attrs['engine'])
        assert far < top, (name, far)
        assert g['parameters'].attrs['device'] in ('cuda', b'cuda')
e, e1, e2, er = (h5py.File(D + n) for n in ('/e.h5', '/e1.h5', '/e2.h5', '/er.h5'))
for c in ('top1', 'top1_share', 'kl', 'agree', 'nll'): # texts weigh the same
    assert np.allclose(e['rows/' + c][:], (e1['rows/' + c][:] + e2['rows/' + c][:]) / 2, rtol=1e-5, atol=1e-7), c
kl = e['rows/kl'][:]
assert kl[3] < 0.8 * kl[1] and kl[4] < 0.8 * kl[2], kl     # fisher against zack at equal p
p = said[0.3]
assert p / 2 < kl[4] < 5 * p, (p, kl[4])                  # a lower estimate, of the right order
assert np.isclose(er['rows/kl'][1], e1['rows/kl'][4], rtol=1e-6)
assert [t.decode() if isinstance(t, bytes) else t for t in er['rows/rule'][:]][1] == 'loss'
# The difference of crossings, again from the file.
t, r = e['target/fisher-loss'].attrs, e['rows']
first = np.concatenate([[0], np.cumsum(e['texts/n_sequences'][:].astype(int))])
top1 = e['sequences/top1'][:]
share = lambda i: np.mean([top1[i, a:b].sum() / top1[0, a:b].sum() for a, b in zip(first, first[1:])])
def crossing(rows):
    x, y = [0.0], [1.0]
    for i in rows:
        x.append(r['overall_p'][i]); y.append(share(i))
        if y[-1] < 0.97:
            return x[-2] + (x[-1] - x[-2]) * (y[-2] - 0.97) / (y[-2] - y[-1])
    return x[-1]
assert np.isclose(t['p_crossing'], crossing([3, 4])) and np.isclose(t['versus_p'], crossing([1, 2]))
assert np.isclose(t['difference'], t['p_crossing'] - t['versus_p']) and t['difference_lo'] <= t['difference'] <= t['difference_hi']
PY
if [ $? -eq 0 ]; then ok "numbers"; sed 's/^/# /' "$D/log"; else not_ok "numbers" "$(cat "$D/log")"; fi
