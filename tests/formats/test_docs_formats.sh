#!/bin/sh
# docs/formats.md against files that the programs have just written: everything in a file is in the tables of its schema, with
# the same shape, type and units; everything the tables call "always" is in every file, and everything else in some file.
set -u
B=${BUILD:-build}
doc=docs/formats.md
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

quietly() { # command...: what it prints counts only when it fails
  "$@" >"$tmp/log" 2>&1 || { echo "not ok make files: $*"; sed 's/^/# /' "$tmp/log"; exit 1; }
}

# ---- one file or more per schema, from a small random model ------------------------------------
quietly "$B/tests/tool_checkpoint" --vocab 40 "$tmp/model"
awk 'BEGIN { for (s = 0; s < 4; s++) for (i = 0; i < 50; i++) printf "%d%s", (s * 71 + i * i * 13 + 5) % 40, i < 49 ? "," : "\n" }' >"$tmp/ids.csv"
awk 'BEGIN { for (s = 0; s < 2; s++) for (i = 0; i < 50; i++) printf "%d%s", (s * 17 + i * 7) % 40, i < 49 ? "," : "\n" }' >"$tmp/other.csv"
mkdir "$tmp/activations" "$tmp/moments" "$tmp/attention" "$tmp/fisher" "$tmp/tokens" "$tmp/spectrum" "$tmp/similarity" "$tmp/rates" "$tmp/error-table" "$tmp/accuracy" "$tmp/kernels" "$tmp/serving" "$tmp/jct"
cd_ids="--ids $tmp/ids.csv -q"
for t in f32 f16 bf16; do
  quietly "$B/bin/kvdim-collect" "$tmp/model" $cd_ids --dtype $t -o "$tmp/activations/$t.h5"
done
quietly "$B/bin/kvdim-collect" "$tmp/model" $cd_ids --rope both --moments="$tmp/moments/both.h5" -o "$tmp/activations/both.h5"
quietly "$B/bin/kvdim-collect" "$tmp/model" --random 200 --moments -q -o "$tmp/moments/random.h5"
quietly "$B/bin/kvdim-collect" "$tmp/model" $cd_ids --attention -o "$tmp/attention/alone.h5"
quietly "$B/bin/kvdim-collect" "$tmp/model" --random 200 --moments="$tmp/moments/beside.h5" --attention="$tmp/attention/beside.h5" --attention-requests 2 -q -o "$tmp/activations/beside.h5"
quietly "$B/bin/kvdim-collect" "$tmp/model" $cd_ids --fisher -o "$tmp/fisher/alone.h5"
quietly "$B/bin/kvdim-collect" "$tmp/model" $cd_ids --rope both --fisher="$tmp/fisher/beside.h5" --fisher-rows 0 -o "$tmp/activations/fisher.h5"
quietly "$B/bin/kvdim-tokens" "$tmp/attention/alone.h5" -q -o "$tmp/tokens/one.h5"
quietly "$B/bin/kvdim-collect" "$tmp/model" --ids "$tmp/other.csv" --moments -q -o "$tmp/other.h5"
quietly "$B/bin/kvdim-spectrum" "$tmp/moments/random.h5" -q -o "$tmp/spectrum/default.h5"
quietly "$B/bin/kvdim-spectrum" "$tmp/activations/both.h5" --pair qk,vw,q,k,v,wv,bqk,bvw --method tsqr -q -o "$tmp/spectrum/all.h5"
quietly "$B/bin/kvdim-spectrum" "$tmp/moments/both.h5" --pairing per-query --rope before -q -o "$tmp/spectrum/query.h5"
quietly "$B/bin/kvdim-spectrum" "$tmp/moments/both.h5" --pairing per-query --rope before --label x -q -o "$tmp/spectrum/query2.h5"
quietly "$B/bin/kvdim-spectrum" "$tmp/activations/both.h5" --tokens 64 -q -o "$tmp/spectrum/cut.h5"
quietly "$B/bin/kvdim-similarity" "$tmp/spectrum/default.h5" "$tmp/spectrum/all.h5" -q -o "$tmp/similarity/two.h5"
quietly "$B/bin/kvdim-similarity" "$tmp/spectrum/query.h5" "$tmp/spectrum/query2.h5" -q -o "$tmp/similarity/query.h5"
quietly "$B/bin/kvdim-fit" "$tmp/spectrum/all.h5" --overall-p 0.25,0.5 -q -o "$tmp/rates/eq6.h5"
quietly "$B/bin/kvdim-fit" "$tmp/spectrum/all.h5" --removal-rate 0.1 --pair bqk,bvw --energy -q -o "$tmp/rates/energy.h5"
quietly "$B/bin/kvdim-eval" "$tmp/model" --ids "$tmp/other.csv" --spectrum "$tmp/spectrum/all.h5" --method balanced --scan-errors --tokens 100 \
  -q -o "$tmp/error-table/balanced.h5"
quietly "$B/bin/kvdim-collect" data/models/kvdim-6m --text data/texts/articles.txt --tokens 512 --seq-len 256 --moments -q -o "$tmp/6m-moments.h5"
quietly "$B/bin/kvdim-spectrum" "$tmp/6m-moments.h5" --pair qk,vw -q -o "$tmp/6m.h5"
quietly "$B/bin/kvdim-eval" data/models/kvdim-6m --text data/texts/stories.txt --tokens 300 --seq-len 100 --prompt 60 --spectrum "$tmp/6m.h5" --cache f16 \
  --method zdc,p_i.qk=0.2/0.5,p_i.v=0.2/0.5,p_u.qk=0.6/0.85,p_u.v=0.6/0.85,g=0.2/0.6 -q -o "$tmp/sweep.h5"
quietly "$B/bin/kvdim-fit" "$tmp/6m.h5" --regression "$tmp/sweep.h5" --loss 0.1 -q -o "$tmp/rates/regression.h5"
quietly "$B/bin/kvdim-fit" "$tmp/spectrum/all.h5" --overall-p 0.5 --error-table "$tmp/error-table/balanced.h5" -q -o "$tmp/rates/error.h5"
quietly "$B/bin/kvdim-eval" "$tmp/model" --ids "$tmp/other.csv" --spectrum "$tmp/spectrum/all.h5" --rates "$tmp/rates/eq6.h5" \
  -q -o "$tmp/accuracy/points.h5"
printf 'd_qk,d_v\n8,16\n' >"$tmp/widths.csv"
quietly "$B/bin/kvdim-attn" --phase decode --impl ref --heads 2 --kv-heads 1 --d-head 16 --seq-len 9 --dims "$tmp/widths.csv" --samples 2 --warmup 0 --hot --device cpu \
  -q -o "$tmp/kernels/decode.h5"
quietly "$B/bin/kvdim-jct" "$tmp/model" --input-len 9 --output-len 3 --repeats 2 --device cpu -q -o "$tmp/jct/jobs.h5"
quietly "$B/tests/tool_jct" costs "$tmp/costs.h5"
quietly "$B/bin/kvdim-serve" --costs "$tmp/costs.h5" --requests poisson:2:arxiv --n-requests 50 --max-rate 0.02 -q -o "$tmp/serving/points.h5"
# A search needs right predictions: of four tokens even a random model gets some.
quietly "$B/tests/tool_checkpoint" --vocab 4 "$tmp/four"
awk 'BEGIN { for (s = 0; s < 2; s++) for (i = 0; i < 50; i++) printf "%d%s", (s * 5 + i * i * 7 + i) / 3 % 4, i < 49 ? "," : "\n" }' >"$tmp/four.csv"
quietly "$B/bin/kvdim-collect" "$tmp/four" --ids "$tmp/four.csv" --moments -q -o "$tmp/four.moments.h5"
quietly "$B/bin/kvdim-spectrum" "$tmp/four.moments.h5" -q -o "$tmp/four.spectrum.h5"
quietly "$B/bin/kvdim-eval" "$tmp/four" --ids "$tmp/four.csv" --spectrum "$tmp/four.spectrum.h5" --method zack --method uniform \
  --target 0.9 --resume -q -o "$tmp/accuracy/target.h5"
# Texts that weigh the same need right predictions of a tokenizer's ids: the demo model has both.
quietly "$B/bin/kvdim-collect" data/models/kvdim-6m --text data/texts/stories.txt --tokens 512 --moments -q -o "$tmp/demo.moments.h5"
quietly "$B/bin/kvdim-spectrum" "$tmp/demo.moments.h5" --pair qk,vw,bqk,bvw -q -o "$tmp/demo.spectrum.h5"
quietly "$B/bin/kvdim-eval" data/models/kvdim-6m --text data/texts/articles.txt --text data/texts/code.txt --by-text --tokens 128 --seq-len 32 \
  --spectrum "$tmp/demo.spectrum.h5" --method zack --method uniform --target 0.5 -q -o "$tmp/accuracy/texts.h5"
mkdir -p "$tmp/sensitivity" "$tmp/tasks"
quietly "$B/bin/kvdim-sensitivity" "$tmp/model" --ids "$tmp/other.csv" -q -o "$tmp/sensitivity/fisher.h5"
printf 'review,kind\nIt was a good film and I liked it.,good\nIt was a bad film and I did not.,bad\n' >"$tmp/films.csv"
quietly "$B/bin/kvdim-tasks" data/models/kvdim-6m --text "$tmp/films.csv" --field review --prompt 4 --generate 2 --needle 1 --seq-len 60 --classify kind --seeds 2 \
  --method keyformer --target 0.5 --target-metric exact --resume -q -o "$tmp/tasks/free.h5"
printf '{"prompt": "Once upon a time", "references": ["dog"], "metric": "exact"}\n' >"$tmp/own.jsonl"
quietly "$B/bin/kvdim-tasks" data/models/kvdim-6m --benchmark "$tmp/own.jsonl" --max-new-tokens 2 --method none -q -o "$tmp/tasks/benchmark.h5"
# Texts of 256 bytes and more.
long="data/models/kvdim-6m --text data/texts/stories.txt --tokens 100 --seq-len 50 -q"
quietly "$B/bin/kvdim-collect" $long --moments="$tmp/moments/text.h5" --attention="$tmp/attention/text.h5" --attention-requests 2 -o "$tmp/activations/text.h5"
quietly "$B/bin/kvdim-collect" $long --fisher -o "$tmp/fisher/text.h5"
quietly "$B/bin/kvdim-tokens" "$tmp/attention/text.h5" -q -o "$tmp/tokens/text.h5"
quietly "$B/bin/kvdim-eval" $long --spectrum "$tmp/demo.spectrum.h5" --method balanced --scan-errors -o "$tmp/error-table/text.h5"
quietly "$B/bin/kvdim-tasks" data/models/kvdim-6m --text data/texts/stories.txt --items 2 --seq-len 60 --prompt 50 --generate 2 --method none -q -o "$tmp/tasks/text.h5"
quietly "$B/bin/kvdim-eval" data/models/kvdim-6m --text "$tmp/films.csv" --field review --prompt 4 --seeds 2 --method keyformer -q -o "$tmp/accuracy/seeds.h5"
echo "ok make files"

# ---- the tables: "dataset|PATH|SHAPE|TYPE|UNITS|WHEN" and "attribute|OBJECT|NAME|TYPE|WHEN" ----------------
# tables SCHEMA: rows of the sections "Every file" and SCHEMA.
tables() { # files of schema kernels come from no model
  awk -v schema="$1" -F'|' '
    /^## / { mine = $0 == "## Every file" || $0 == "## " schema || ($0 == "## Targets" && schema ~ /^(accuracy|tasks)$/) }
    function plain(s) { gsub(/^[ \t]+|[ \t]+$/, "", s); gsub(/`/, "", s); return s }
    mine && /^\| `\// && NF == 8 { print "dataset|" plain($2) "|" plain($3) "|" plain($4) "|" plain($5) "|" plain($7) }
    mine && /^\| `\// && NF == 7 { print "attribute|" plain($2) "|" plain($3) "|" plain($4) "|" plain($6) }
    mine && /^\| `\// && NF != 7 && NF != 8 { print "odd|" $0 }' "$doc" |
    if [ "$1" = kernels ]; then grep -v '^attribute|/model|'; else cat; fi
}

# Contents of a file, with the names that vary replaced as the tables write them.
held() { # schema file
  "$B/tests/tool_h5list" "$2" | sed -E \
    -e 's#^(dataset|attribute)\|/(qk|vw|q|k|v|wv|bqk|bvw|fqk|fvw)(/|\|[a-z_]+\|(text|int64|float64)$)#\1|/<pair>\3#' \
    -e 's#/inputs/[0-9]+#/inputs/<n>#' -e 's#\|/target/[a-z0-9-]+(\||/)#|/target/<method>\1#' >"$tmp/raw"
  case $1 in
    activations) # its groups of one letter are datasets; one dtype for all
      "$B/tests/tool_h5list" "$2" | sed -E -e 's#/inputs/[0-9]+#/inputs/<n>#' -e 's#\|(float16|bfloat16|float32)\|#|dtype|#' ;;
    spectrum | similarity) sed -E 's#(<pair>/[^|]*\|[^|]*)\[head\]#\1[kv_head]#' "$tmp/raw" ;;
    jct) sed -E 's#/rows/(prefill|decode)_(embed|norm|qkv|rope|rotate|compress|append|schedule|prefill|decode|restore|o|mlp|head|sample|comm|host)_s#/rows/\1_<part>_s#' "$tmp/raw" ;;
    tasks) # columns that every measure has
      m='rouge1|rouge1_precision|rouge1_recall|edit_similarity|exact|agree_prefix|reference_rouge1|reference_edit_similarity|needle_(exact|prefix|nll|rank|agree)|class_(correct|agree)'
      sed -E -e "s#/rows/($m)((_change)?_(lo|hi)|_change|_sd)\\|\[row\]\|float64\|[a-z1]+\$#/rows/<measure>\\4|[row]|float64|its own#" \
        -e "s#/(generated|needle|classified)/(uncompressed_)?($m)\\|([^|]*)\|float64\|[a-z1]+\$#/\\1/\\2<measure>|\\6|float64|its own#" "$tmp/raw" ;;
    kernels) sed -E 's#\|/ceilings/(cpu|gpu)\|#|/ceilings/<device>|#' "$tmp/raw" ;;
    *) cat "$tmp/raw" ;;
  esac | grep -v '^attribute|/parameters|' | sort -u
}

same_items() { sed -E 's/\|[^|]*$//' "$1" | sort -u; }

for schema in activations moments attention fisher tokens spectrum similarity rates error-table accuracy tasks kernels serving jct; do
  tables "$schema" >"$tmp/doc"
  same_items "$tmp/doc" >"$tmp/known"
  grep -E '\|always$' "$tmp/doc" | sed -E 's/\|[^|]*$//' | sort -u >"$tmp/always"
  : >"$tmp/seen"
  : >"$tmp/log"
  grep '^odd' "$tmp/doc" >>"$tmp/log"
  [ "$(wc -l <"$tmp/always")" -ge 40 ] || echo "only $(wc -l <"$tmp/always") rows say always" >>"$tmp/log"
  for f in "$tmp/$schema"/*.h5; do
    held "$schema" "$f" >"$tmp/held"
    [ "$(grep -c '^dataset' "$tmp/held")" -ge 2 ] || echo "$(basename "$f"): nothing listed" >>"$tmp/log"
    grep '^bad' "$tmp/held" >>"$tmp/log"
    comm -13 "$tmp/known" "$tmp/held" | sed "s#^#$(basename "$f") holds, undocumented: #" >>"$tmp/log"
    comm -23 "$tmp/always" "$tmp/held" | sed "s#^#$(basename "$f") lacks: #" >>"$tmp/log"
    cat "$tmp/held" >>"$tmp/seen"
  done
  sort -u "$tmp/seen" | comm -23 "$tmp/known" - | sed 's#^#in no file: #' >>"$tmp/log"
  if [ -s "$tmp/log" ]; then echo "not ok $schema"; sed 's/^/# /' "$tmp/log"; else echo "ok $schema"; fi
done

# ---- /parameters: what each program records is named, and nothing else ---------------------------------
for schema in activations moments attention fisher tokens spectrum sensitivity rates error-table accuracy tasks kernels serving jct; do
  case $schema in
    activations | moments | attention | fisher) program=kvdim-collect ;;
    sensitivity) program=kvdim-sensitivity ;;
    spectrum) program=kvdim-spectrum ;;
    tokens) program=kvdim-tokens ;;
    rates) program=kvdim-fit ;;
    kernels) program=kvdim-attn ;;
    serving) program=kvdim-serve ;;
    jct) program=kvdim-jct ;;
    tasks) program=kvdim-tasks ;;
    *) program=kvdim-eval ;;
  esac
  for f in "$tmp/$schema"/*.h5; do
    "$B/tests/tool_h5list" "$f" | sed -nE -e 's/\[[0-9]+\]/[<i>]/' -e "s#^attribute\|/parameters\|([^|]*)\|text\$#$program \1#p"
  done
done | sort -u >"$tmp/recorded"
# Names are in backquotes outside of parentheses.
awk -F'|' '/^\| `kvdim-[a-z]+` \|/ && NF == 4 && $3 ~ /`[a-z-]+`/ && $3 !~ /kvdim-/ {
  program = $2; gsub(/[ `]/, "", program); list = $3; gsub(/\([^)]*\)/, "", list)
  n = split(list, part, "`"); for (i = 2; i <= n; i += 2) print program, part[i] }' "$doc" | sort -u >"$tmp/named"
if [ -s "$tmp/recorded" ] && diff "$tmp/named" "$tmp/recorded" >"$tmp/log"; then
  echo "ok parameters"
else
  echo "not ok parameters"; sed 's/^/# /' "$tmp/log"
fi
"$B/tests/tool_h5list" "$tmp/similarity/two.h5" | grep -q '|/parameters|' && echo "not ok similarity has no parameters" || echo "ok similarity has no parameters"

# ---- versions and refusals: the messages that the page quotes ------------------------------------------
cp "$tmp/spectrum/default.h5" "$tmp/cut.h5"
head -c 1000 "$tmp/spectrum/default.h5" >"$tmp/cut.h5"
: >"$tmp/empty.h5"
echo "no HDF5" >"$tmp/text.h5"
refuses() { # name words file
  "$B/bin/kvdim-fit" "$3" --overall-p 0.5 -q -o "$tmp/none.h5" >"$tmp/log" 2>&1
  if [ $? -eq 1 ] && grep -qF -- "$2" "$tmp/log" && grep -qF -- "$2" "$doc"; then echo "ok refuses $1"; else echo "not ok refuses $1"; sed 's/^/# /' "$tmp/log"; fi
}
refuses "missing" "No such file or directory" "$tmp/nowhere.h5"
refuses "a folder" "is a folder, not an HDF5 file" "$tmp"
refuses "empty" "' is empty" "$tmp/empty.h5"
refuses "not HDF5" "is not an HDF5 file" "$tmp/text.h5"
refuses "cut short" "is cut short: it has 1000 of " "$tmp/cut.h5"
refuses "another schema" "holds kvdim/moments, kvdim/spectrum is wanted" "$tmp/moments/random.h5"
