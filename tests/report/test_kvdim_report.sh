#!/bin/sh
# kvdim-report: what it writes, that NumPy agrees, that it is the same twice, what it refuses, hostile labels.
. tests/lib/cases.sh
report="$B/bin/kvdim-report"
hash=hash=xxh3:00000000000000000000000000000001

refused() {
  name=$1 status=$2 text=$3; shift 3
  "$@" >"$D/log" 2>&1; got=$?
  if [ $got -eq "$status" ] && grep -qF -- "$text" "$D/log" && [ "$(wc -l <"$D/log")" -le 2 ]; then ok "$name"
  else echo "status $got" >>"$D/log"; not_ok "$name"; fi
}
# not_drawn FOLDER: the reasons on the page why figures are not drawn; left_out FOLDER: what they do not show
page_lines() { "$PYTHON" -c 'import html, re, sys; [print(html.unescape(x)) for x in re.findall(sys.argv[2], open(sys.argv[1] + "/index.html").read())]' "$D/$1" "$2"; }
not_drawn() { page_lines "$1" 'Not drawn: ([^<]*) \(the data are in tables/\)'; }
left_out() { page_lines "$1" '<p class="note">(Left out[^<]*)</p>'; }
# points FOLDER FIGURE: how many markers it has, those of the key among them
points() { grep -o "#gpPt[0-9]*' transform='translate" "$D/$1/figures/$2.svg" | wc -l; }
# $1 [FILE]: column COLUMN of the row whose fields match
cell() { "$PYTHON" - "$@" <<'P'
import csv, sys
path, column, *where = sys.argv[1:]
for row in csv.DictReader(open(path)):
    if all(row[k] == v for k, v in (w.split("=", 1) for w in where)):
        print(row[column]); break
P
}

mkdir "$D/in"
synthetic() { "$B/tests/tool_synthetic" moments "$D/$1.h5" "$2" "$3" "$hash" label="$4" && "$B/bin/kvdim-spectrum" "$D/$1.h5" --pair qk,vw,k,v,wv -q -o "$D/in/$1-spectrum.h5"; }
synthetic a 400 1 text1 && synthetic b 400 2 text2 && synthetic c 400 3 random || exit 1
for n in 100 200 400; do
  "$B/tests/tool_synthetic" moments "$D/n.h5" $n 2 "$hash" label=text2 && "$B/bin/kvdim-spectrum" "$D/n.h5" --pair qk,vw -q -o "$D/n$n.h5" || exit 1
done
"$B/bin/kvdim-similarity" "$D/in/a-spectrum.h5" "$D/in/b-spectrum.h5" "$D/in/c-spectrum.h5" -q -o "$D/in/similarity.h5" &&
"$B/bin/kvdim-similarity" "$D/in/a-spectrum.h5" "$D/n100.h5" "$D/n200.h5" "$D/n400.h5" -q -o "$D/in/tokens.h5" &&
"$B/bin/kvdim-fit" "$D/in/a-spectrum.h5" --removal-rate 0,0.1,0.3 -q -o "$D/in/rates.h5" &&
"$B/tests/tool_accuracy" "$D/in/accuracy-1.h5" text1 text1 1 && "$B/tests/tool_accuracy" "$D/in/accuracy-2.h5" text2 text1 1.05 || exit 1

plots=--no-plots
if command -v gnuplot >/dev/null 2>&1; then plots=; else echo "skip figures: gnuplot is not installed"; fi
check "a folder of results" "$report" "$D/in" $plots -o "$D/r"
grep -q '^ZACK Table 4 ' "$D/log" && grep -q 'kept up to p' "$D/log" && tail -n 1 "$D/log" | grep -q "r/index.html$" && ok "headline on stdout" || not_ok "headline on stdout"
t="$D/r/tables"
for f in ledger target accuracy bytes similarity token-count transfer-1-qk spectra largest-singular-value-cv rates provenance commands inputs; do
  [ -s "$t/$f.csv" ] && [ -s "$t/$f.md" ] || { echo "$f" >"$D/log"; not_ok "table $f"; }
done
ok "tables"

# The published tables alone, and a report without anything to read.
check "the published tables alone" "$report" --published --no-plots -o "$D/published"
for f in published-models published-fit published-shared published-doubles published-readings; do
  [ -s "$D/published/tables/$f.csv" ] || { echo "$f" >"$D/log"; not_ok "table $f"; }
done
[ "$(cell "$D/published/tables/published-fit.csv" violated table=fdc_table02_qk_eps_delta)" = 11 ] && ok "pairs that break the triangle inequality" || not_ok "pairs that break the triangle inequality"
if grep -q "Measured by\|not measured\|id=\"provenance\"" "$D/published/index.html"; then not_ok "nothing about results on a page without results"; else ok "nothing about results on a page without results"; fi
check "readings are measured" "$report" --published "$D/in" --no-plots -q -o "$D/published"
grep -q "difference of averages over all heads" "$D/published/tables/published-readings.csv" && ok "the reading of published size" || not_ok "the reading of published size"
mkdir "$D/paper" && cp data/paper/*.csv "$D/paper" && sed '2s/6.43e-2/six/' data/paper/tables.csv >"$D/paper/tables.csv"
refused "a published number that is none" 1 "'$D/paper/tables.csv', row 2 of 'fdc_table02_qk_eps_delta': published number: 'six' is not a number" \
  "$report" --published --paper "$D/paper" --no-plots -o "$D/none"
sed '2s/6.43e-2/0.0643000000000000000000000000000000000001/' data/paper/tables.csv >"$D/paper/tables.csv"
refused "a published number that is long" 1 "has more than 39 bytes" "$report" --published --paper "$D/paper" --no-plots -o "$D/none"
refused "nothing to report" 2 "no RESULT or --published given" "$report" -o "$D/none"

cat >"$D/oracle.py" <<'P'
import csv, sys, h5py, numpy as np
folder, tables = sys.argv[1:]
rows = lambda n: list(csv.DictReader(open(f"{tables}/{n}.csv")))
mean = {(r["series"], r["pair"], int(r["dim"])): r for r in rows("spectra-mean")}
cv = {(r["series"], r["pair"]): float(r["cv_percent"]) for r in rows("largest-singular-value-cv")}
summary = {(r["series"], r["pair"]): r for r in rows("spectra")}
for file, name in (("a", "text1"), ("b", "text2"), ("c", "random")):
    with h5py.File(f"{folder}/{file}-spectrum.h5") as f:
        for pair in ("qk", "vw", "k", "v", "wv"):
            s = f[pair]["sigma"][...].reshape(-1, 8)
            for j in range(8):
                assert np.isclose(float(mean[name, pair, j]["mean_sigma"]), s[:, j].mean(), rtol=1e-8)
            ratio = float(mean[name, pair, 0]["mean_sigma_normalised"]) / s[:, 0].mean()
            assert np.isclose(ratio ** -2, int(summary[name, pair]["n_rows"]), rtol=1e-6)
            assert np.isclose(cv[name, pair], 100 * s[:, 0].std(ddof=1) / s[:, 0].mean(), rtol=1e-8)
            m = s.mean(0)
            assert np.isclose(float(summary[name, pair]["trailing_half_percent"]), 100 * m[4:].sum() / m.sum(), rtol=1e-8)
            assert np.isclose(float(summary[name, pair]["below_one_percent"]), 100 * (s < 1).mean(), atol=1e-9)
            e = np.cumsum(s ** 2, 1) / (s ** 2).sum(1, keepdims=True)
            assert np.isclose(float(summary[name, pair]["dims_for_90_percent"]), ((e < 0.9).sum(1) + 1).mean(), rtol=1e-8)
R = {f: h5py.File(f"{folder}/{f}-spectrum.h5")["qk/R"][...].reshape(-1, 8, 8) for f in "abc"}
s = [r for r in rows("similarity") if r["reference"] == "text1" and r["other"] == "random" and r["pair"] == "qk"][0]
eps = np.abs(R["c"]).mean(); delta = np.abs(R["a"] - R["c"]).mean()
overlap = np.mean([np.linalg.norm(a[:, :4].T @ c[:, :4]) ** 2 / 4 for a, c in zip(R["a"], R["c"])])
assert np.isclose(float(s["delta_over_epsilon_percent"]), 100 * delta / eps, rtol=1e-8)
assert np.isclose(float(s["overlap_half"]), overlap, rtol=1e-8)
a = {(r["label"], r["method"], r["overall_p"]): r for r in rows("accuracy")}
for label, scale in (("text1", 1), ("text2", 1.05)):
    for p in (0.25, 0.5, 0.75):
        r = a[label, "zack", f"{p:g}"]
        for k in ("perplexity_ratio", "perplexity_ratio_lo", "perplexity_ratio_hi"):
            assert np.isclose(float(r[k]), np.exp(scale * p), rtol=1e-8), r
d = {(r["label"], r["series"], int(r["layer"])): float(r["attention_error"]) for r in rows("degradation-layers")}
assert np.isclose(d["text2", "zack at p = 0.50", 1], 0.5 * 2 * 1.05)
l = {r["id"]: r for r in rows("ledger")}
assert l["ZACK Table 4"]["published"] == "0.0657 to 0.3512 %"
assert l["ZACK Table 6"]["published"] == "48.17 to 58.03 %"
assert l["ZDC Fig. 14"]["verdict"] == "not measured" and l["ZDC Fig. 14"]["ours"].endswith("; on other texts 1.05 (6 values)"), l["ZDC Fig. 14"]
assert l["ZACK Fig. 18 (Q-K)"]["verdict"] == "not measured"
P
if "$PYTHON" -c 'import h5py, numpy' 2>/dev/null; then check "NumPy agrees" "$PYTHON" "$D/oracle.py" "$D/in" "$t"; else echo "skip NumPy agrees: no h5py for $PYTHON"; fi
[ "$(cell "$t/target.csv" p label=text1 method=zack calibration=text1 how=search)" = 0.3125 ] && ok "target of a search" || { cat "$t/target.csv" >"$D/log"; not_ok "target of a search"; }
# uniform keeps 1 - 2 p^2: 0.875 at 0.25, so nothing is kept
[ "$(cell "$t/target.csv" p label=text1 method=uniform how=points)" = 0 ] && [ "$(cell "$t/target.csv" p_misses label=text1 method=uniform how=points)" = 0.25 ] && ok "target read off points" || { cat "$t/target.csv" >"$D/log"; not_ok "target read off points"; }

check "the same twice" sh -c "'$report' '$D/in' $plots -q -o '$D/again' && diff -r '$D/r' '$D/again'"
if [ -z "$plots" ]; then
  for f in zack-fig05-k-v zack-fig10-qk-vw zdc-fig13-heads zack-fig18-token-count transfer-1 rates-p-of-r rates-kept-1 accuracy-1 accuracy-2 zdc-fig14-degradation degradation-layers; do
    [ -s "$D/r/figures/$f.svg" ] && [ "$(head -c 4 "$D/r/figures/$f.png" | tail -c 3)" = PNG ] || { echo "$f" >"$D/log"; not_ok "figure $f"; }
  done
  ok "figures"
  ls "$D/r/figures" | grep -q partial && { echo partial >"$D/log"; not_ok "no partial figure"; } || ok "no partial figure"
  # A figure that gnuplot cannot draw, or every figure without gnuplot, is a line on the page that says why.
  mkdir "$D/style" && cp plots/*.gp "$D/style/" && echo 'this is no command' >"$D/style/rates.gp"
  check "a broken script" "$report" "$D/in" --plots "$D/style" -q -o "$D/broken"
  [ "$(cat "$D/log")" = 'kvdim-report: warning: 1 figure is not drawn: gnuplot failed: "rates.gp" line 1: invalid command' ] && ok "is said on stderr" || not_ok "is said on stderr"
  [ "$(not_drawn broken)" = 'gnuplot failed: "rates.gp" line 1: invalid command' ] && [ ! -e "$D/broken/figures/rates-p-of-r.svg" ] &&
    cmp -s "$D/broken/figures/accuracy-1.png" "$D/r/figures/accuracy-1.png" && ok "is said on the page" || { not_drawn broken >"$D/log"; not_ok "is said on the page"; }
  check "gnuplot is not installed" env PATH=/nonexistent "$report" "$D/in" -q -o "$D/no-gnuplot"
  [ "$(not_drawn no-gnuplot | sort -u)" = 'gnuplot is not installed' ] && [ -z "$(ls "$D/no-gnuplot/figures")" ] && grep -q 'figures are not drawn: gnuplot is not installed$' "$D/log" &&
    diff -r "$D/r/tables" "$D/no-gnuplot/tables" >"$D/log" && ok "is said on the page, too" || not_ok "is said on the page, too"
fi
check "without gnuplot" env PATH=/nonexistent "$report" "$D/in" --no-plots -q -o "$D/bare"
grep -q 'Not drawn' "$D/bare/index.html" && ok "says what is not drawn" || not_ok "says what is not drawn"

check "well-formed page" "$PYTHON" - "$D/r/index.html" <<'P'
import os, re, sys
from html.parser import HTMLParser
folder = os.path.dirname(sys.argv[1])
text = open(sys.argv[1], encoding="utf-8").read()
void = {"meta", "br", "wbr", "rect", "circle", "path", "use", "feflood", "fecomposite", "stop", "image"}
class Page(HTMLParser):
    stack, ids, targets = [], set(), set()
    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "link", "iframe", "img"), tag
        for k, v in attrs:
            assert not k.startswith("on"), k
            if k in ("src", "href") or k.endswith(":href"):
                assert v[0] == "#" or v.startswith("data:image/png") or os.path.isfile(folder + "/" + v), v
                if v[0] == "#": self.targets.add(v[1:])
            if k == "id":
                assert v not in self.ids, "id twice: " + v
                self.ids.add(v)
        if tag not in void: self.stack.append(tag)
    def handle_startendtag(self, tag, attrs): pass
    def handle_endtag(self, tag):
        if tag in void: return
        assert self.stack and self.stack.pop() == tag, tag
p = Page(); p.feed(text); assert not p.stack, p.stack
assert p.targets <= p.ids, p.targets - p.ids
assert "strcol" not in text and text.count("<title>") == 1, "gnuplot commands in the page"
assert "url(http" not in text and "@import" not in text
P

# A cell of the page is that of the CSV file, rounded, with the ends of an interval in brackets.
check "tables of the page are those of the files" "$PYTHON" - "$D/r" <<'P'
import csv, html, re, sys
folder, n = sys.argv[1], 0
def number(text): # a rounded number and half of a unit in its last digit
    digits, _, power = text.partition("e")
    return float(text), 0.501 * 10.0 ** ((int(power) if power else 0) - len(digits.partition(".")[2]))
page = open(folder + "/index.html", encoding="utf-8").read()
for table, name in re.findall(r"<tbody>(.*?)</tbody>.*?href=\"tables/([^\"]*)\.csv\"", page, re.S):
    rows = list(csv.reader(open(f"{folder}/tables/{name}.csv", encoding="utf-8")))
    head, shown = rows[0], re.findall(r"<tr>(.*?)</tr>", table, re.S)
    assert len(shown) == len(rows) - 1 > 0, name
    for line, row in zip(shown, rows[1:]):
        at = 0
        for cell in re.findall(r"<td[^>]*>(.*?)</td>", line, re.S):
            cell = html.unescape(cell.replace("<wbr>", ""))
            interval = at + 2 < len(head) and head[at + 1] == head[at] + "_lo" and head[at + 2] == head[at] + "_hi"
            parts = re.split(r"[][, ]+", cell.strip("]")) if interval else [cell]
            for text, want in zip(parts, row[at:]):
                if re.fullmatch(r"-?[0-9.]+(e[-+][0-9]+)?", text) and text != want:
                    assert abs(number(text)[0] - float(want)) <= number(text)[1], (name, head[at], text, want)
                    n += 1
                else:
                    assert text == want or (text in ("", "-") and want == ""), (name, head[at], text, want)
            at += 3 if interval else 1
        assert at == len(head), (name, head, line)
assert n > 500, n
P

# The first screen: at most three numbers, a count of every verdict, one figure, a short table; long tables are folded.
check "first screen" "$PYTHON" - "$D/r" <<'P'
import csv, re, sys
folder = sys.argv[1]
text = open(folder + "/index.html").read()
first = text[text.index('<section id="summary">'):text.index('<section id="ledger">')]
rows = lambda n: list(csv.DictReader(open(f"{folder}/tables/{n}.csv")))
assert "<title>kvdim report: synthetic</title>" in text and "text1, 800 predicted tokens" in first
assert re.findall(r'<div class="card"><span>([^<]*)</span><b>([^<]*)</b>', first) == [("Best method: zack", "31.2 %"), ("uniform", "0.0 %")], first
assert "95 % interval 25.0 to 37.5 %" in first and "of the dimensions removed at 99 % of top-1 accuracy" in first
count = dict(re.findall(r'<b>(\d+)</b> ([a-z ]+)</', first))
verdicts = [r["verdict"] for r in rows("ledger")]
assert {v: int(n) for n, v in re.findall(r'<b>(\d+)</b> ([a-z ]+)</', first)} == {v: verdicts.count(v) for v in ("reproduced", "holds", "trend holds", "cannot tell", "not reproduced", "does not hold", "not measured")}, count
assert text.count('<details class="claim">') == len(verdicts)
assert [r["method"] for r in rows("summary")] == ["zack", "uniform"] and len(rows("summary-curves")) == 6
assert first.count("<figure>") == 1 and first.count("<table>") == 1
for title in re.findall(r"<summary>(.*?)</summary>", text, re.S): assert title.count("(") == title.count(")"), title
for table in re.findall(r'<div class="wide"><table><caption>.*?</table>', text, re.S): assert table.count("<tr>") <= 7, table[:200]
P
# Six of many methods are shown, zack and uniform among them.
if "$PYTHON" -c 'import h5py' 2>/dev/null; then
  "$PYTHON" - "$D" <<'P'
import h5py, shutil, sys
t = sys.argv[1]
for k, name in enumerate(("fdc", "palu", "think", "fisher", "balanced", "strawman")):
    shutil.copy(f"{t}/in/accuracy-1.h5", f"{t}/many-{name}.h5")
    with h5py.File(f"{t}/many-{name}.h5", "r+") as f:
        method = f["rows/method"]
        method[...] = [name if m in (b"uniform", "uniform") else m for m in method[...]]
        f["rows/top1_share"][...] = 1 - (1 - f["rows/top1_share"][...]) * 0.001 * (k + 1)
P
  check "many methods" "$report" "$D/in/accuracy-1.h5" "$D"/many-*.h5 --no-plots -q -o "$D/many"
  "$B/tests/tool_accuracy" "$D/few-a.h5" a-text text1 1 && check "a text with fewer methods" "$report" "$D/few-a.h5" "$D"/many-*.h5 --no-plots -q -o "$D/texts"
  is "the text with most methods is open" "Predictions of text1 Predictions of a-text" "$(for x in '</details>\n<figure>(?s:.)*?<figcaption>' '<summary>'; do page_lines texts "$x(Predictions of [^ ]*) against" | head -n 1; done | paste -sd' ')"
  cut -d, -f1 "$D/many/tables/summary.csv" | sort >"$D/log"
  [ "$(wc -l <"$D/log")" -eq 7 ] && grep -qx zack "$D/log" && grep -qx uniform "$D/log" && ok "six of them, with zack and uniform" || not_ok "six of them, with zack and uniform"
  # Two models of one name: rows tell which model, and each model has its own curves.
  cp "$D/in/accuracy-1.h5" "$D/other.h5"
  "$PYTHON" -c 'import sys, h5py
with h5py.File(sys.argv[1], "r+") as f:
    f["model"].attrs["hash"] = "xxh3:abcdefabcdef00000000000000000000"
    f["provenance"].attrs["command_line"] = "kvdim-eval" + " a.txt" * 100' "$D/other.h5"
  check "two models of one name" "$report" "$D/in/accuracy-1.h5" "$D/other.h5" --no-plots -q -o "$D/models"
  [ "$(cut -d, -f2 "$D/models/tables/accuracy.csv" | sed 1d | sort -u | grep -c ' (hash [0-9a-f]\{8\})$')" -eq 2 ] &&
    ok "are told apart" || not_ok "are told apart" "$(cat "$D/models/tables/accuracy.csv")"
  is "the summary names the model of its numbers" "1" "$(page_lines models '(shrink the KV cache of synthetic \(hash [0-9a-f]{8}\), compared with its uncompressed cache on the text text1, 800 predicted tokens\. Sections below have 1 further model\. Measured)' | wc -l)"
  check "a long command line has a wide column" grep -q '<td class="l">kvdim-eval a.txt' "$D/models/index.html"
  # Calibrations whose labels differ in a character that names of curves cannot have; rows that differ in one key, the prompt or the type of the cache.
  "$B/tests/tool_accuracy" "$D/comma.h5" text1 'a,b' 1 && "$B/tests/tool_accuracy" "$D/semicolon.h5" text1 'a;b' 1.5 && "$B/tests/tool_accuracy" "$D/keys.h5" text1 text1 1 || exit 1
  check "labels with a comma and a semicolon" "$report" "$D/comma.h5" "$D/semicolon.h5" --no-plots -q -o "$D/alike"
  is "two calibrations each" "2 2" "$(grep -c '^text1,zack,"*a[,;]b"*,' "$D/alike/tables/target.csv") $(grep -c '^text1,uniform,"*a[,;]b"*,' "$D/alike/tables/target.csv")"
  "$PYTHON" - "$D/keys.h5" <<'P'
import h5py, numpy, sys
with h5py.File(sys.argv[1], "r+") as f:
    rows = f["rows"]
    for name, values in {"settings": ["", "m.a=1,m.b=3", "m.a=2,m.b=3", "m.b=3,cut=v", "", "", ""], "cache": ["f16"] + ["f32"] * 6}.items():
        if name in rows: del rows[name]
        rows[name] = numpy.array(values, "S16")
    rows["prompt"] = numpy.array([0, 0, 0, 0, 0, 64, 64], "<i8")
    rows["overall_p"][1:3] = 0.25
    for name in ("settings", "cache", "prompt"): rows[name].attrs.update(long_name=numpy.bytes_(name), units=numpy.bytes_("1"))
P
  check "rows that differ in one key" "$report" "$D/keys.h5" --no-plots -q -o "$D/keys"
  is "say which" "m.a=1 m.a=2 cut=v" "$(for p in 0.0625 0.25 0.5625; do cell "$D/keys/tables/accuracy.csv" setting method=zack "top1_share=$(awk "BEGIN { print 1 - $p }")"; done | tr '\n' ' ' | sed 's/ $//')"
  is "and the prompt" "0 64" "$(for s in 0.875 0.5; do cell "$D/keys/tables/accuracy.csv" prompt method=uniform top1_share=$s; done | tr '\n' ' ' | sed 's/ $//')"
fi

# A label is a stranger's text: it must stay text in HTML, Markdown, CSV and on the terminal.
"$B/tests/tool_synthetic" moments "$D/h.h5" 200 5 "$hash" label='<script>alert(1)</script>|",`x`' && "$B/bin/kvdim-spectrum" "$D/h.h5" --pair qk,vw -q -o "$D/hostile.h5" || exit 1
check "a hostile label" "$report" "$D/hostile.h5" "$D/in/a-spectrum.h5" $plots -o "$D/hostile"
! grep -q '<script' "$D/hostile/index.html" && grep -q '&lt;script&gt;' "$D/hostile/index.html" && ok "is escaped in the page" || not_ok "is escaped in the page"
! grep -q '<script' "$D/hostile/tables/spectra.md" && ok "is escaped in Markdown" || not_ok "is escaped in Markdown"

# No font has the character U+50000. gnuplot draws a missing glyph over the whole PNG.
if [ -z "$plots" ] && command -v fc-list >/dev/null; then
  rare=$(printf '\361\220\200\200')
  "$B/tests/tool_synthetic" moments "$D/u.h5" 200 5 "$hash" label="a${rare}b" && "$B/bin/kvdim-spectrum" "$D/u.h5" --pair qk,vw -q -o "$D/rare.h5" || exit 1
  check "a character without a font" "$report" "$D/rare.h5" -q -o "$D/rare"
  why="No PNG of figure 'zack-fig10-qk-vw': no installed font has the character '$rare' (U+50000)"
  cp "$D/log" "$D/rare.err"
  check "is named on stderr" says "$D/rare.err" "kvdim-report: warning: $why"
  is "and on the page" 1 "$(page_lines rare '<p class="note">(No PNG[^<]*)</p>' | grep -cF "$why")"
  check "its figure has an SVG alone" test -s "$D/rare/figures/zack-fig10-qk-vw.svg" -a ! -e "$D/rare/figures/zack-fig10-qk-vw.png" -a -s "$D/rare/figures/zdc-fig13-heads.png"
else
  echo "skip a character without a font: no gnuplot or no fc-list"
fi

# A label that a spreadsheet would run as a formula: no field of any table starts with it.
"$B/tests/tool_synthetic" moments "$D/f.h5" 200 5 "$hash" label='=HYPERLINK("x")' && "$B/bin/kvdim-spectrum" "$D/f.h5" --pair qk,vw -q -o "$D/formula.h5" || exit 1
check "a formula as label" "$report" "$D/formula.h5" "$D/in/a-spectrum.h5" $plots -o "$D/formula"
grep -q "'=HYPERLINK" "$D/formula/tables/spectra.csv" && ! grep -Eq '(^|,)"?[=@]' "$D"/formula/tables/*.csv && ok "is text in every table" || not_ok "is text in every table"

# Calibration on fewer rows: spectra that are pruned or clustered, and accuracy files that name them.
mkdir "$D/few"
"$B/tests/tool_synthetic" activations "$D/rows.h5" 400 1 "$hash" sequences=20 && "$B/tests/tool_synthetic" moments "$D/rows-m.h5" 400 1 "$hash" || exit 1
"$B/bin/kvdim-spectrum" "$D/rows-m.h5" --label all -q -o "$D/few/s-all.h5" && "$B/tests/tool_accuracy" "$D/few/a-all.h5" text1 all 0.5 || exit 1
for how in "p2 0.2 0 0.6" "p5 0.5 0 0.7" "k20 0.5 20 1.2" "k40-2 0.2 40 0.8" "k40 0.5 40 1" "k40-8 0.8 40 1.6" "k40-0 0 40 0.75"; do
  set -- $how
  "$B/bin/kvdim-spectrum" "$D/rows.h5" --label "$1" --prune "$2" $([ "$3" = 0 ] || echo --centroids "$3") -q -o "$D/few/s-$1.h5" &&
    "$B/tests/tool_accuracy" "$D/few/a-$1.h5" text1 "$1" "$4" || exit 1
done
check "calibration on fewer rows" "$report" "$D/few" $plots -o "$D/fewer"
t="$D/fewer/tables"
[ "$(cell "$t/calibration.csv" n_tokens method=zack p_wanted=0.5 centroids=40 prune=0.8)" = 80 ] && [ "$(cell "$t/calibration.csv" centroids method=zack p_wanted=0.5 prune=0.2 n_tokens=320)" = "" ] &&
  [ "$(wc -l <"$t/calibration.csv")" -eq 49 ] && ok "a row for every spectrum, method and p" || { cat "$t/calibration.csv" >"$D/log"; not_ok "a row for every spectrum, method and p"; }
! grep -q k40 "$t/accuracy.csv" && grep -q ',all,' "$t/accuracy.csv" && ! grep -q k40 "$t/spectra.csv" && ok "they stand in their own section" || { cat "$t/accuracy.csv" >"$D/log"; not_ok "they stand in their own section"; }
for id in 'ZDC Fig. 15 (Q-K)' 'ZDC Fig. 26 (a), perplexity' 'ZDC Fig. 26 (b), perplexity' 'ZDC Fig. 26 (b), time'; do
  [ "$(cell "$t/ledger.csv" verdict "id=$id")" != 'not measured' ] || { cat "$t/ledger.csv" >"$D/log"; not_ok "ledger: $id"; }
done
ok "ledger of fewer rows"
[ -n "$plots" ] || { [ -s "$D/fewer/figures/zdc-fig15-pruning.svg" ] && [ -s "$D/fewer/figures/zdc-fig26-calibration.png" ] && ok "figures of fewer rows" || not_ok "figures of fewer rows"; }
t="$D/r/tables"

check "compared with itself" "$report" "$D/in" --compare "$D/in" --no-plots --json -o "$D/same"
"$PYTHON" -c '
import json, sys
x = json.load(open(sys.argv[1]))
assert x["outside"] == 0 and len(x["ledger"]) > 15 and not x["figures"] and "comparison" in x["tables"]
assert {e["verdict"] for e in x["ledger"]} <= {"reproduced", "holds", "trend holds", "cannot tell", "not reproduced", "does not hold", "not measured"}' "$D/log" 2>>"$D/log" && ok "json, nothing outside" || not_ok "json, nothing outside"
"$B/tests/tool_accuracy" "$D/other.h5" text1 text1 2 || exit 1
check "compared with another" "$report" "$D/in/accuracy-1.h5" --compare "$D/other.h5" --no-plots -q -o "$D/cmp"
grep -q ',kl,.*,outside$' "$D/cmp/tables/comparison.csv" && grep -q ',perplexity,.*,differs$' "$D/cmp/tables/comparison.csv" && ok "differences are outside" || { cat "$D/cmp/tables/comparison.csv" >"$D/log"; not_ok "differences are outside"; }
"$PYTHON" -c '
import shutil, sys, h5py
shutil.copy(sys.argv[1], sys.argv[2])
with h5py.File(sys.argv[2], "r+") as f:
    f["model"].attrs["hash"] = b"xxh3:7"' "$D/in/accuracy-1.h5" "$D/unlike.h5" || exit 1
refused "another model" 1 "rows of one label and method differ in model" "$report" "$D/in/accuracy-1.h5" --compare "$D/unlike.h5" --no-plots -o "$D/x"
refused "nothing to compare" 1 "no row of the two sets measures the same thing" "$report" "$D/in/accuracy-1.h5" --compare "$D/in/rates.h5" --no-plots -o "$D/x"

refused "--paired without an accuracy file" 1 "--paired needs an accuracy file (kvdim-eval)" "$report" "$D/in/rates.h5" --paired zack -o "$D/x"
refused "--paired with a method that no file has" 1 "--paired: no accuracy file has 'nothing' and another method" "$report" "$D/in/accuracy-1.h5" --paired nothing -o "$D/x"
refused "no input" 2 "no RESULT or --published given" "$report" -o "$D/x"
refused "no output" 2 "no -o FOLDER given" "$report" "$D/in"
refused "a missing file" 1 "No such file" "$report" "$D/none.h5" -o "$D/x"
refused "given twice" 1 "is given twice" "$report" "$D/in/rates.h5" "$D/in/rates.h5" -o "$D/x"
mkdir "$D/twin" && cp "$D/in/rates.h5" "$D/twin/copy.h5"
refused "a copy" 1 "rates.h5' and '$D/twin/copy.h5' are one file or copies of one" "$report" "$D/in/rates.h5" "$D/twin" -o "$D/x"
refused "another path of a file" 1 "are one file or copies of one" "$report" "$D/in/rates.h5" "$D/twin/../in/rates.h5" -o "$D/x"
"$report" "$D/in/rates.h5" --no-plots -q -o "$D/held" && cp "$D/in/rates.h5" "$D/held/tables/mine.h5"
refused "an input in the output folder" 1 "cannot replace '$D/held': it holds the input '$D/held/tables/mine.h5'" "$report" "$D/held/tables/mine.h5" --no-plots -o "$D/held"
cmp -s "$D/in/rates.h5" "$D/held/tables/mine.h5" && ok "the input is as it was" || not_ok "the input is as it was"
refused "moments" 1 "holds moments, not results" "$report" "$D/a.h5" -o "$D/x"
echo text >"$D/text.h5"
refused "no HDF5" 1 "text.h5" "$report" "$D/text.h5" -o "$D/x"
mkdir "$D/empty"
echo '{"traceEvents": [{"ph": "X", "cat": "iteration", "name": "step", "pid": 1, "ts": 0, "dur": 10, "args": {"requests": 1e300, "tokens": 4}}]}' >"$D/huge.json"
"$report" "$D/in/rates.h5" --timeline "$D/huge.json" --no-plots -q -o "$D/timeline" >"$log" 2>&1
grep -qx '0,0.01,0,,4' "$D/timeline/tables/timeline-iterations.csv" && ok "a count beyond all integers" || not_ok "a count beyond all integers"
refused "a timeline next to no result" 2 "--timeline requires RESULT" "$report" --published --timeline "$D/text.h5" -o "$D/x"
refused "a link without tasks" 1 "--link-bandwidth needs answers to benchmarks" "$report" "$D/in" --no-plots --link-bandwidth 2 -o "$D/x"
refused "an empty folder" 1 "holds no .h5 file" "$report" "$D/empty" -o "$D/x"
refused "no ledger" 1 "--paper: '$D/empty' does not hold ledger.csv" "$report" "$D/in" --paper "$D/empty" -o "$D/x"
refused "no scripts" 1 "--plots: '$D/empty' does not hold common.gp" "$report" "$D/in" --plots "$D/empty" -o "$D/x"
if "$PYTHON" -c 'import h5py' 2>/dev/null; then
  "$PYTHON" - "$D" <<'P'
import h5py, shutil, sys
t = sys.argv[1]
def copy(name, change):
    shutil.copy(f"{t}/in/{name}.h5", f"{t}/bad.h5")
    with h5py.File(f"{t}/bad.h5", "r+") as f: change(f)
    shutil.move(f"{t}/bad.h5", f"{t}/bad-{change.__name__}.h5")
def unknown(f): f.attrs["schema"] = "kvdim/weather"
def incomplete(f): f.attrs["complete"] = 0
def newer(f): f.attrs["schema_version"] = 99
def shape(f): del f["qk/matrix/overlap_half"]; f["qk/matrix/overlap_half"] = [[1.0]]
def nan(f): f["qk/matrix/overlap_half"][0, 0] = float("nan")
def overlap(f): f["qk/matrix/overlap_half"][0, 1] = 1.5
def share(f): f["rows/overall_p"][1] = 1.25
def infinite(f): f["rows/kl"][1] = float("inf")
def negative(f): f["rows/n_predictions"][1] = -5
def inputs(f): f["provenance"].attrs["input_count"] = 10 ** 12
def sequences(f): del f["sequences/nll"]; f["sequences/nll"] = [[1.0]]
def target(f): del f["target/zack"].attrs["p_lo"]
def metric(f): f["target/zack"].attrs["metric"] = 5
def long_metric(f): f["target/zack"].attrs["metric"] = "x" * 5000
def own(f): f["target/zack"].attrs["own"] = 2
def wanted(f): f["target/zack"].attrs["target"] = float("nan")
def counts(f): f["sequences/n"][1] = -7
def predictions(f): f["rows/n_predictions"][1] = 7
def hashes(f):
    old = f["files/hash"][...]
    del f["files/hash"]
    f["files/hash"] = old.repeat(3)
def layers(f):
    zdc = f["attention_error/zdc"][...]
    del f["attention_error/zdc"]
    f["attention_error/zdc"] = zdc.repeat(3, axis=1)
def needles(f):
    for x in "depth", "needle_nll", "needle_agree", "needle_exact": f[f"needle/{x}"] = [0.5] if x == "depth" else [[1.5]] * len(f["rows/kl"])
def error(f): f["attention_error/zdc"][1, 0, 1] = float("inf")
def text(f): del f["rows/kl"]; f.create_dataset("rows/kl", f["rows/overall_p"].shape, "S3")[...] = b"0.5"
def scalar(f): del f["rows/kl"]; f["rows/kl"] = 0.5
def folder(f): del f["rows/kl"]; f.create_group("rows/kl")
def methods(f): del f["rows/method"]
def measure(f): f.create_dataset("rows/class_agree", f["rows/kl"].shape, "S3")[...] = b"0.5"
def model_field(f): del f["model"].attrs["d_head"]
def label_kind(f): f.attrs["label"] = 5
def hash_kind(f): f.attrs["label"], f.attrs["corpus_hash"] = "text", 5
def no_counts(f): f["sequences/n"][...] = 0
def nsequences(f):
    kl(f)
    f.copy("rows/n_predictions", "rows/n_sequences")
    f["rows/n_sequences"][...] = [8, 0] + [8] * (len(f["rows/n_sequences"]) - 2)
def kl(f):
    shape = f["sequences/nll"].shape
    if "kl" in f["sequences"]: del f["sequences/kl"]
    f["sequences/kl"] = [[float("inf") if (i, s) == (1, 1) else 0.5 for s in range(shape[1])] for i in range(shape[0])]
copy("rates", unknown); copy("rates", incomplete); copy("rates", newer); copy("similarity", shape); copy("similarity", nan)
copy("rates", inputs); copy("accuracy-1", sequences); copy("accuracy-1", target)
copy("similarity", hashes); copy("accuracy-1", layers); copy("accuracy-1", error); copy("accuracy-1", needles)
copy("similarity", overlap); copy("accuracy-1", share); copy("accuracy-1", infinite); copy("accuracy-1", negative)
for change in (metric, long_metric, own, wanted, counts, no_counts, kl, nsequences, predictions, text, scalar, folder, methods, measure, model_field, label_kind, hash_kind): copy("accuracy-1", change)
P
  refused "an unknown schema" 1 "is a 'kvdim/weather' file; the report knows" "$report" "$D/bad-unknown.h5" -o "$D/x"
  refused "an incomplete file" 1 "bad-incomplete.h5" "$report" "$D/bad-incomplete.h5" -o "$D/x"
  refused "a newer file" 1 "bad-newer.h5" "$report" "$D/bad-newer.h5" -o "$D/x"
  refused "a wrong shape" 1 "/qk/matrix/overlap_half" "$report" "$D/bad-shape.h5" -o "$D/x"
  refused "a NaN" 1 "/qk/matrix/overlap_half" "$report" "$D/bad-nan.h5" -o "$D/x"
  refused "an overlap above 1" 1 "/qk/matrix/overlap_half holds 1.5, not within 0 .. 1" "$report" "$D/bad-overlap.h5" -o "$D/x"
  refused "a share above 1" 1 "/rows/overall_p[1] is 1.25, above 1" "$report" "$D/bad-share.h5" -o "$D/x"
  refused "an infinity" 1 "/rows/kl[1] is inf, infinite" "$report" "$D/bad-infinite.h5" -o "$D/x"
  refused "a negative count" 1 "/rows/n_predictions[1] is -5, below 0" "$report" "$D/bad-negative.h5" -o "$D/x"
  refused "too many inputs" 1 "1000000000000 inputs under /provenance" "$report" "$D/bad-inputs.h5" -o "$D/x"
  refused "sums of other sequences" 1 "/sequences/nll" "$report" "$D/bad-sequences.h5" -o "$D/x"
  refused "half a target" 1 "p_lo" "$report" "$D/bad-target.h5" -o "$D/x"
  refused "a metric that is no text" 1 "bad-metric.h5' attribute '/target/zack/metric'" "$report" "$D/bad-metric.h5" -o "$D/x"
  refused "a long metric" 1 "attribute metric of /target/zack is longer than 47 bytes" "$report" "$D/bad-long_metric.h5" -o "$D/x"
  refused "own is 0 or 1" 1 "attribute own of /target/zack is 2, should be 0 to 1" "$report" "$D/bad-own.h5" -o "$D/x"
  refused "a target that is NaN" 1 "attribute target of /target/zack is nan" "$report" "$D/bad-wanted.h5" -o "$D/x"
  refused "a sequence of -7 predictions" 1 "/sequences/n[1] is -7, not a number of predictions" "$report" "$D/bad-counts.h5" -o "$D/x"
  refused "sequences without predictions" 1 "bad-no_counts.h5': /sequences/n has" "$report" "$D/bad-no_counts.h5" -o "$D/x"
  refused "an infinite KL of a sequence" 1 "/sequences/kl[1, 1] is inf, not a sum of KL" "$report" "$D/bad-kl.h5" -o "$D/x"
  refused "rows of 0 sequences" 1 "/rows/n_sequences[1] is 0, but /sequences/n has 8" "$report" "$D/bad-nsequences.h5" -o "$D/x"
  refused "other predictions than the sequences" 1 "/rows/n_predictions[1] is 7, but /sequences/n has" "$report" "$D/bad-predictions.h5" -o "$D/x"
  refused "hashes of other files" 1 "'/files/hash' has 9 texts, should have 3" "$report" "$D/bad-hashes.h5" -o "$D/x"
  refused "errors of other layers" 1 "/attention_error/zdc has 6 layers, the other /attention_error has 2" "$report" "$D/bad-layers.h5" -o "$D/x"
  refused "a share of needles above 1" 1 "/needle/needle_agree[0][0] is 1.5, not within 0 .. 1" "$report" "$D/bad-needles.h5" -o "$D/x"
  refused "an infinite error" 1 "/attention_error/zdc[1][0][1] is inf, not an error" "$report" "$D/bad-error.h5" -o "$D/x"
  refused "a measure that is text" 1 "/rows/kl has text, should have real numbers" "$report" "$D/bad-text.h5" -o "$D/x"
  refused "a measure of one number" 1 "'/rows/kl' has no rows" "$report" "$D/bad-scalar.h5" -o "$D/x"
  refused "a group of rows" 1 "'/rows/kl' is no dataset" "$report" "$D/bad-folder.h5" -o "$D/x"
  refused "rows without methods" 1 "has no column '/rows/method'" "$report" "$D/bad-methods.h5" -o "$D/x"
  refused "a measure of tasks that is text" 1 "/rows/class_agree has text, should have real numbers" "$report" "$D/bad-measure.h5" -o "$D/x"
  refused "half a model" 1 "bad-model_field.h5' has no attribute '/model/d_head'" "$report" "$D/bad-model_field.h5" -o "$D/x"
  refused "a label that is no text" 1 "bad-label_kind.h5' attribute '/label' is not a text" "$report" "$D/bad-label_kind.h5" -o "$D/x"
  refused "a hash that is no text" 1 "bad-hash_kind.h5' attribute '/corpus_hash' is not a text" "$report" "$D/bad-hash_kind.h5" -o "$D/x"
  # 2101 rows of three methods: minutes if a step is cubic in them.
  "$PYTHON" - "$D/in/accuracy-1.h5" "$D/many.h5" <<'P'
import h5py, shutil, sys
import numpy as np
shutil.copy(sys.argv[1], sys.argv[2])
with h5py.File(sys.argv[2], "r+") as f:
    n = len(f["rows/method"])
    for path in [f"{g}/{x}" for g in ("rows", "sequences", "attention_error") for x in f[g] if f"{g}/{x}" != "sequences/n"]:
        old = f[path][...]
        new, attributes = np.concatenate([old] + [old[1:]] * 349), dict(f[path].attrs)
        if path == "rows/overall_p": new[1:] = np.tile(np.linspace(0.1, 0.8, n - 1), 350) + np.arange(350 * (n - 1)) * 1e-5
        del f[path]
        f[path] = new
        for a in ("long_name", "units"): f[path].attrs[a] = attributes[a]
P
  check "many rows" timeout 60 "$report" "$D/many.h5" --no-plots -q -o "$D/many"
  [ ! -e "$D/x/index.html" ] && ok "failures leave no page" || not_ok "failures leave no page"
else
  echo "skip damaged files: no h5py for $PYTHON"
fi
if [ "$(id -u)" -ne 0 ]; then
  mkdir "$D/ro" && chmod 555 "$D/ro"
  refused "a folder that cannot be written" 1 "Permission denied" "$report" "$D/in" --no-plots -o "$D/ro/x"
fi
# ---- what figures can and cannot show ------------------------------------------------------------

if [ -z "$plots" ]; then
  # One layer: every panel is drawn.
  "$B/tests/tool_synthetic" moments "$D/one.h5" 200 6 "$hash" layers=1 label=one && "$B/bin/kvdim-spectrum" "$D/one.h5" --pair qk,vw -q -o "$D/one-spectrum.h5" &&
    "$B/bin/kvdim-fit" "$D/one-spectrum.h5" --overall-p 0.3 -q -o "$D/one-rates.h5" || exit 1
  check "one layer" "$report" "$D/one-spectrum.h5" "$D/one-rates.h5" -q -o "$D/one"
  [ ! -s "$D/log" ] && [ -z "$(not_drawn one)" ] && [ -s "$D/one/figures/zdc-fig13-heads.svg" ] && ok "has its figures" || not_ok "has its figures"
  # Two boxes of kept dimensions in each of two panels.
  [ "$(grep -c "<path stroke='rgb(" "$D/one/figures/rates-kept-1.svg")" -ge 4 ] && ok "heat map of one layer" || { grep -n "<path" "$D/one/figures/rates-kept-1.svg" >"$D/log"; not_ok "heat map of one layer"; }

  # A cache that makes the model better has the points of one that makes it worse.
  "$B/tests/tool_accuracy" "$D/better.h5" text1 text1 -0.01 && "$B/tests/tool_accuracy" "$D/worse.h5" text1 text1 0.01 || exit 1
  check "ratios above 1" "$report" "$D/worse.h5" -q -o "$D/worse"
  check "ratios below 1" "$report" "$D/better.h5" -q -o "$D/better"
  [ ! -s "$D/log" ] && [ -z "$(not_drawn better)$(left_out better)" ] && [ "$(points better accuracy-1)" -eq "$(points worse accuracy-1)" ] && [ "$(points better accuracy-1)" -ge 18 ] &&
    ok "have all their points" || { points better accuracy-1 >>"$D/log"; points worse accuracy-1 >>"$D/log"; not_ok "have all their points"; }

  # Nothing lost at any p: KL 0 and perplexity ratio 1 leave the logarithmic panels without values.
  "$B/tests/tool_accuracy" "$D/zero.h5" text1 text1 0 && check "panels without values" "$report" "$D/zero.h5" -q -o "$D/zero"
  left_out zero >"$D/log"
  grep -qxF 'Left out of "KL divergence": 6 of 6 points at 0 or below, which a logarithmic axis cannot show.' "$D/log" && [ -z "$(not_drawn zero)" ] && ok "say so" || not_ok "say so"

  # A rule without removal rates: the title says p, and the points that have no place on the axis are counted.
  "$B/tests/tool_synthetic" moments "$D/two.h5" 400 1 "$hash" label=two && "$B/bin/kvdim-spectrum" "$D/two.h5" --pair bqk,bvw -q -o "$D/two-spectrum.h5" &&
    "$B/tests/tool_synthetic" error-table "$D/table.h5" 0 1 "$hash" && "$B/bin/kvdim-fit" "$D/two-spectrum.h5" --error-table "$D/table.h5" --overall-p 0.25,0.5 -q -o "$D/error-rates.h5" || exit 1
  check "no removal rate" "$report" "$D/error-rates.h5" "$D/in/rates.h5" -q -o "$D/no-rate"
  grep -q '>overall p = 0.250<' "$D/no-rate/figures/rates-kept-1.svg" && grep -q 'by the rule &#39;error&#39;' "$D/no-rate/index.html" && ok "overall p in the title" || not_ok "overall p in the title"
  left_out no-rate >"$D/log"
  grep -qxF 'Left out: 2 points of files whose rule has no removal rate; the table has them.' "$D/log" && ok "points without a removal rate" || not_ok "points without a removal rate"
  if "$PYTHON" -c 'import h5py' 2>/dev/null; then
    "$PYTHON" - "$D" <<'P'
import h5py, shutil, sys
t = sys.argv[1]
def copy(name, change):
    shutil.copy(f"{t}/worse.h5", f"{t}/{name}.h5")
    with h5py.File(f"{t}/{name}.h5", "r+") as f: change(f["rows"])
nan = float("nan")
def holes(r): r["kl"][1] = 0; r["kl_lo"][2] = -1e-7; r["top1_share"][3] = nan
def none(r):
    r["attention_error"][...] = nan
    for k in ("top1_share", "kl"): r[k][...] = nan
def single(r): r["overall_p"][...] = 0.5
def no_p(r): r["overall_p"][1:] = nan
copy("holes", holes); copy("single", single); copy("no-p", no_p)
copy("none", none)
with h5py.File(f"{t}/none.h5", "r+") as f: del f["sequences"]
shutil.copy(f"{t}/worse.h5", f"{t}/layer.h5")
with h5py.File(f"{t}/layer.h5", "r+") as f: f["attention_error/relative"][:, 0] = nan
P
    check "some points cannot be shown" "$report" "$D/holes.h5" -q -o "$D/holes"
    left_out holes >"$D/log"
    grep -qF 'Left out of "top-1 accuracy / uncompressed": 1 of 6 points, which have no finite value. Left out of "KL divergence": 1 of 6 points at 0 or below' "$D/log" &&
      [ "$(points holes accuracy-1)" -eq $(($(points worse accuracy-1) - 2)) ] && ok "are counted" || { points holes accuracy-1 >>"$D/log"; not_ok "are counted"; }
    check "an error that the first layer lacks" "$report" "$D/layer.h5" --no-plots -q -o "$D/layer"
    is "does not hide the others" "$(grep -c , "$D/worse/tables/degradation-layers.csv")" "$(grep -c , "$D/layer/tables/degradation-layers.csv")"
    check "no point can be shown" "$report" "$D/none.h5" -q -o "$D/none"
    not_drawn none >"$D/log"
    grep -q '^no point can be shown. Left out of "top-1 accuracy / uncompressed": 6 of 6 points' "$D/log" && [ ! -e "$D/none/figures/accuracy-1.svg" ] && [ -s "$D/none/tables/accuracy.csv" ] && ok "a line says why" || not_ok "a line says why"
    check "a single value of p" "$report" "$D/single.h5" -q -o "$D/single"
    not_drawn single >"$D/log"
    [ "$(sort -u "$D/log")" = 'no method was measured at two values of p' ] && ok "makes no curve, a line says so" || not_ok "makes no curve, a line says so"
    check "methods that have no p" "$report" "$D/no-p.h5" --compare "$D/no-p.h5" -q -o "$D/no-p"
    for r in r fewer no-rate holes none single one zero no-p; do
      "$PYTHON" - "$D/$r" <<'P'
import glob, re, sys
for path in glob.glob(sys.argv[1] + "/index.html") + glob.glob(sys.argv[1] + "/tables/*"):
    text = re.sub(r"<title>.*?</title>|<style>.*?</style>", "", open(path).read(), flags=re.S)
    if found := re.search(r"(?i)[^\n]{0,40}(\bnan\b|-9223372036854775808)[^\n]{0,20}", text): print(path, found[0])
P
    done >"$D/log"
    [ ! -s "$D/log" ] && ok "no nan on a page or in a table" || not_ok "no nan on a page or in a table"
  else
    echo "skip what figures leave out: no h5py for $PYTHON"
  fi
fi

# ---- the folder appears whole or not at all ------------------------------------------------------

"$report" "$D/zero.h5" --no-plots -q -o "$D/old" && cp -r "$D/old" "$D/before" || exit 1
unchanged() {
  diff -r "$D/before" "$D/old" >"$D/log" 2>&1 && [ -z "$(ls -d "$D"/old?* 2>/dev/null)" ] && ok "$1" || { ls -d "$D"/old* >>"$D/log"; not_ok "$1"; }
}
refused "a file that grows too large" 1 "File too large" sh -c "ulimit -f 16; exec '$report' '$D/in' --no-plots -q -o '$D/old'"
unchanged "leaves the old folder"
mkdir "$D/disk"
if mount -t tmpfs -o size=800k none "$D/disk" 2>/dev/null; then
  refused "a full disk" 1 "No space left on device" sh -c "'$report' '$D/zero.h5' --no-plots -q -o '$D/disk/old' && cp -r '$D/disk/old' '$D/full' && exec '$report' '$D/in' $plots -q -o '$D/disk/old'"
  diff -r "$D/full" "$D/disk/old" >"$D/log" 2>&1 && [ "$(ls "$D/disk")" = old ] && ok "leaves the old folder, too" || not_ok "leaves the old folder, too"
  umount "$D/disk"
else
  echo "skip a full disk: no right to mount a tmpfs"
fi
if [ -z "$plots" ]; then
  mkdir "$D/stop" && printf '#!/bin/sh\nkill -TERM $PPID\n' >"$D/stop/gnuplot" && chmod +x "$D/stop/gnuplot"
  refused "interrupted" 1 "interrupted" env PATH="$D/stop:$PATH" "$report" "$D/in" -q -o "$D/old"
  unchanged "leaves the old folder as well"
  # Another report of the same folder, while gnuplot of the first one runs.
  printf '#!/bin/sh\n[ -e "%s/second" ] || "%s" "%s" --no-plots -q -o "%s/old" >"%s/second" 2>&1\nexec gnuplot-absent\n' "$D" "$(realpath "$report")" "$D/in" "$D" "$D" >"$D/stop/gnuplot"
  check "two writers" env PATH="$D/stop:$PATH" "$report" "$D/zero.h5" -q -o "$D/old"
  grep -q "old' is being written by another program" "$D/second" && ok "the second is refused" || { cat "$D/second" >"$D/log"; not_ok "the second is refused"; }
  rm -rf "$D/before" && cp -r "$D/old" "$D/before"
fi
touch "$D/old/notes.txt" "$D/before/notes.txt"
refused "a folder with a file of the user" 1 "cannot remove 'notes.txt' in '$D/old'" "$report" "$D/in" --no-plots -q -o "$D/old"
unchanged "leaves it alone"
rm "$D/old/notes.txt" && touch "$D/old/tables/stale.csv"
check "an old report" "$report" "$D/in" --no-plots -q -o "$D/old/"
[ ! -e "$D/old/tables/stale.csv" ] && diff -r "$D/bare" "$D/old" >"$D/log" && ok "is replaced whole" || not_ok "is replaced whole"
bare=''
for m in $("$B/bin/kvdim-eval" --list-methods | sed -nE 's/^  ([a-z0-9]+)  +(dims|tokens|bits|layers)[a-z, ]*: .*/\1/p'); do
  sed -n "/^method_tints/,/'\$/p" plots/common.gp | grep -qE "[ '^]$m #[0-9a-f]{6}|^$m #" || bare="$bare $m"
done
is "every method has a colour" "" "$bare"

# A page of jobs of many machines, batches and files: every job has its bars, figures of one place say which sizes they
# hold, lines never go back.
t="$D/jobs/tables"
check "results/h200/figures" "$B/bin/kvdim-report" results/h200/figures --no-plots -o "$D/jobs"

rows() { awk 'FNR > 1' "$@" | wc -l; }
jobs=$(rows "$t/jct.csv")
for kind in bars shares; do
  check "$jobs jobs, as many rows of $kind" [ "$jobs" -gt 100 ] && check "none left out of $kind" [ "$(rows "$t"/jct-$kind-[0-9]*.csv)" -eq "$jobs" ]
done
head -q -n 1 "$t"/jct-bars-[0-9]*.md | sort | uniq -d >"$D/log"
[ ! -s "$D/log" ] && ok "no two figures of the same name" || not_ok "no two figures of the same name"

for f in lengths outputs; do
  awk -F, 'NR > 1 { k = $1 "," $3; if (k == last && $4 < x) { print; bad = 1 } else if (k != last && seen[k]++) { print "again: " $0; bad = 1 } last = k; x = $4 + 0; n++ } END { exit bad || n < 5 }' "$t/jct-$f.csv" >"$D/log" && ok "lines of $f go one way" || not_ok "lines of $f go one way"
done

awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "file") last = i == NF } NR > 1 && $NF !~ /\.h5"?$/ { print; bad = 1 } END { exit bad || !last }' "$t/jct.csv" >"$D/log" && ok "every job says its file" || not_ok "every job says its file"

# Bytes are compared with a 16-bit cache in runs of both types: h2o stores numbers alone, kivi and hetero also codes.
evaluate() { "$B/bin/kvdim-eval" data/models/kvdim-6m --text data/texts/stories.txt --tokens 400 --seq-len 200 --threads 1 -q "$@" 2>/dev/null; }
for type in f16 f32; do
  check "an evaluation in $type" evaluate --prompt 64 --cache $type --method h2o --method hetero,k=2,v=2 --method kivi,bits=8 -o "$D/$type.h5"
  check "its page" "$report" "$D/$type.h5" --no-plots -q -o "$D/$type"
done
saving() { cell "$D/$1/tables/summary.csv" kl_at "method=$2" | awk '{ printf "%.4f", $1 }'; }
is "a method without codes saves the same in both types" "$(saving f16 h2o)" "$(saving f32 h2o)"
for type in f16 f32; do
  is "a method with codes saves what it stored less than a 16-bit cache, $type" "$(column "$D/$type.h5" cache_share | awk '{ printf "%.4f", 1 - $4 }')" "$(saving $type kivi)"
done
check "the page names 32-bit numbers" says "$D/f32/index.html" 'These runs stored numbers of 32 bits.'
if grep -q 'numbers of 32 bits' "$D/f16/index.html"; then not_ok "the page names them only then"; else ok "the page names them only then"; fi
check "numbers alone in f32" evaluate --prompt 64 --cache f32 --method h2o -o "$D/plain.h5"
check "its page" "$report" "$D/plain.h5" --no-plots -q -o "$D/plain"
if grep -q 'numbers of 32 bits' "$D/plain/index.html"; then not_ok "the page names them only with codes"; else ok "the page names them only with codes"; fi
check "a search in f32" evaluate --prompt 32 --cache f32 --method kivi --target 0.9 -o "$D/search.h5"
check "its page" "$report" "$D/search.h5" --no-plots -q -o "$D/search"
is "a search against a 16-bit cache" "$(attribute "$D/search.h5" /target/kivi/saving | awk '{ printf "%.6f", 2 * $1 - 1 }')" "$(cell "$D/search/tables/target.csv" saving method=kivi | awk '{ printf "%.6f", $1 }')"

# The first card is not the first name: hetero keeps 80 % of the accuracy, kivi all. Methods under other conditions are named.
is "the best of single points" "kivi" "$(page_lines f16 'class="card"><span>([^<]*)' | sed -n 1p)"
is "no card of a method that was not measured" "kivi" "$(page_lines f16 'class="card"><span>([^<]*)')"
check "no claim is measured" test "$(cut -d, -f1 "$D/f16/tables/ledger.csv" | wc -l)" -gt 100 -a -z "$(page_lines f16 'id="(verdict-[0-5])"')"
check "the page says so in one line" says "$D/f16/index.html" "These files measure none of"
is "without a count of every verdict" "" "$(page_lines f16 'class="(strip)"')"
check "another prompt" evaluate --prompt 32 --cache f16 --method streaming -o "$D/prompt.h5"
check "its page" "$report" "$D/f16.h5" "$D/prompt.h5" --no-plots -q -o "$D/prompts"
check "the summary names methods with another prompt" says "$D/prompts/index.html" 'and not compared here: streaming (prompt 32).'
if grep -q 'not compared here' "$D/f16/index.html"; then not_ok "it names nothing if all are compared"; else ok "it names nothing if all are compared"; fi
