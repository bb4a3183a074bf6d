#!/bin/sh
# kvdim-collect from the outside: values against Transformers, files against h5py, errors by their text.
. tests/lib/cases.sh
collect=$B/bin/kvdim-collect
compare="${PYTHON:-/usr/bin/python3} tests/tools/tool_compare_h5.py"

with_h5py() { # NAME COMMAND...
  if [ "$h5py" = yes ]; then check "$@"; else echo "skip $1: python3 has no h5py and numpy"; fi
}
refused() { a=$1 b=$2 c=$3; shift 3; no_output "$a" "$b" "$c" "$collect" "$@"; } # NAME STATUS TEXT ARGUMENTS...

h5py=no
${PYTHON:-/usr/bin/python3} -c 'import h5py, numpy' 2>/dev/null && h5py=yes
model=$D/tiny
"$B/tests/tool_checkpoint" "$model" || exit 1
real=data/models/kvdim-6m

# ---- a tokenizer of 601 ids for a vocabulary of 8192 is another model's ----
mkdir "$D/other" && ln -s "$PWD/$real/config.json" "$PWD/$real/model.safetensors" "$D/other" && cp tests/data/tokenizers/gpt2.json "$D/other/tokenizer.json"
small="warning: tokenizer '$D/other/tokenizer.json' has 601 ids and the model's vocabulary 8192: "
few="--tokens 256 --seq-len 32 -q -o $D/small.h5"
for command in "collect data/models/kvdim-6m" "collect $D/other" "sensitivity $D/other" "eval $D/other --method none"; do
  "$B"/bin/kvdim-$command --text data/texts/stories.txt $few >"$log" 2>&1
  status=$?
  want=1
  case $command in *kvdim-6m) want=0 ;; esac
  check "warns of a small tokenizer: $command" test $status -eq 0 -a "$(grep -cF "$small" "$log")" -eq $want -a "$(grep -c . "$log")" -eq $want
done

# ---- values ----
if [ "$h5py" = yes ]; then
  ${PYTHON:-/usr/bin/python3} -c 'import h5py, sys; sys.stdout.write(h5py.File("tests/data/collect_kvdim6m.h5").attrs["rows"])' >"$D/rows.csv"
  "$collect" $real --ids "$D/rows.csv" --rope both --dtype f32 -q -o "$D/o.h5"
fi
with_h5py collect_agrees_with_transformers $compare oracle tests/data/collect_kvdim6m.h5 "$D/o.h5"

run="$collect $model --random 700 --seed 3 --seq-len 50 --batch 128 --threads 2 -q"
check collect_f32 $run --rope both --dtype f32 --moments="$D/m.h5" -o "$D/f32.h5"
check collect_f16 $run --rope both -o "$D/f16.h5"
check collect_bf16 $run --dtype bf16 -o "$D/bf16.h5"
check collect_moments_only $run --rope both --moments -o "$D/m2.h5"
check collect_layers $run --rope both --dtype f32 --layers 1-1 --moments="$D/m3.h5" -o "$D/layer.h5"
with_h5py dump_f16_is_f32_rounded $compare rounded "$D/f32.h5" "$D/f16.h5"
with_h5py dump_layers_are_those_of_the_whole $compare layers "$D/f32.h5" "$D/layer.h5"
with_h5py moments_are_sums_of_the_dump $compare moments "$D/f32.h5" "$D/m.h5"
with_h5py moments_of_one_layer $compare moments "$D/layer.h5" "$D/m3.h5"
with_h5py moments_alone_are_the_same $compare same "$D/m.h5" "$D/m2.h5"
with_h5py dump_tokens_fit $compare tokens "$D/f32.h5" 50
with_h5py dump_is_described $compare described "$D/f16.h5"
with_h5py moments_are_described $compare described "$D/m.h5"
if command -v h5dump >/dev/null; then
  check h5dump_reads_f16 h5dump -d /v -s 0,0,0,0 -c 1,1,2,4 "$D/f16.h5"
  check h5dump_reads_bf16 h5dump -d /q -s 0,0,0,0 -c 1,1,2,4 "$D/bf16.h5"
else
  echo "skip h5dump_reads_f16: no h5dump"
fi

# ---- texts ----
head -c 3000 data/texts/articles.txt >"$D/a.txt"
printf '{"prompt": "One fine day"}\n{"prompt": "the cat sat"}\n' >"$D/a.jsonl"
check text_plain "$collect" $real --text "$D/a.txt" --tokens 100 --layers 0 -q -o "$D/t.h5"
check text_jsonl "$collect" $real --text "$D/a.jsonl" --field prompt --layers 0 -q -o "$D/t.h5"
check text_several "$collect" $real --layers 0 -q -o "$D/t.h5" --tokens 64 --text data/texts/code.txt "$D/a.txt"
"$collect" $model --random 64 --json -o "$D/j.h5" >"$D/j.json" 2>"$log"
check summary_is_json ${PYTHON:-/usr/bin/python3} -c "import json; j = json.load(open('$D/j.json')); assert j['tokens'] == 64 and j['bytes'] > 0 and j['moments'] is None"
check summary_is_printed sh -c "$collect $model --random 64 -o $D/j.h5 2>/dev/null | grep -q '64 tokens in 1 sequence of 1 document (random)'"
check quiet_prints_nothing sh -c "test -z \"\$($collect $model --random 64 -q -o $D/j.h5 2>&1)\""

# ---- refusals ----
printf '1,2,3\n4,300\n' >"$D/ids.csv"
printf '1,2,3\n4,5\n' >"$D/good.csv"
: >"$D/empty.txt"
printf 'abc \377 def' >"$D/latin.txt"
printf '{"text": "a b"}\n{"text": ' >"$D/bad.jsonl"
printf 'review,label\nx,y\n' >"$D/bad.csv"
refused no_model 2 'no MODEL or --shape given' --random 10
refused no_source 2 'no --text, --ids or --random given' $model
refused two_sources 2 '--ids cannot be used with --random' $model --random 10 --ids "$D/good.csv"
refused stray_argument 2 "argument 'x' is one too many" $model x --random 10
refused bad_dtype 2 "--dtype: 'f8' is none of f32, f16, bf16" $model --random 10 --dtype f8
refused bad_layers 2 '--layers' $model --random 10 --layers 2-1
refused layers_beyond 1 '--layers 0-2: the model has layers 0 to 1' $model --random 10 --layers 0-2
refused seq_len_beyond 1 '--seq-len 257: the model was made for at most 256 positions' $model --random 10 --seq-len 257
refused id_beyond 1 "ids.csv' row 2: token id 300, the model's ids are 0 to 299" $model --ids "$D/ids.csv"
refused too_few 1 "good.csv': 5 tokens, fewer than the 6 asked for" $model --ids "$D/good.csv" --tokens 6
refused empty_text 1 "empty.txt' is empty" $real --text "$D/empty.txt"
refused not_utf8 1 "latin.txt': text is not valid UTF-8 at byte 4" $real --text "$D/latin.txt"
refused not_json 1 "bad.jsonl' line 2: not JSON" $real --text "$D/bad.jsonl"
refused no_column 1 "bad.csv' row 1: no column 'text'; columns: review, label" $real --text "$D/bad.csv"
refused missing_text 1 "nowhere.txt" $real --text "$D/nowhere.txt"
refused missing_model 1 "cannot open '$D/nowhere': No such file or directory; models are read from this machine and not downloaded: give a folder with config.json" "$D/nowhere" --random 10
check help_names_every_kind_of_checkpoint sh -c "'$collect' --help | tr -s '\\n ' ' ' | grep -q 'Local Hugging Face folder, NAME.safetensors, NAME.gguf or llama2.c.s NAME.bin'"
"$collect" $model --random 10 --device cuda -q -o "$D/cuda.h5" >"$D/cuda.log" 2>&1
if grep -q "left out of this build" "$D/cuda.log"; then check build_without_cuda_says_why grep -qF "(CUDA=0, or make found no nvcc)" "$D/cuda.log"; fi
check missing_folder sh -c "! $collect $model --random 10 -o $D/no/where.h5 2>&1 | grep -v \"no/where.h5\""
check one_file_twice sh -c "$collect $model --random 10 --moments=$D/x.h5 -o $D/x.h5; test \$? = 2"

# ---- memory does not grow with the number of tokens ----
peak() { "$B/tests/tool_rusage" "$collect" $model --random "$1" --seq-len 64 --threads 1 --moments="$D/p.h5" -q -o "$D/q.h5" 2>&1 | tail -1 | cut -d' ' -f2; }
if grep -q __asan_init "$collect"; then
  echo "skip peak_memory: AddressSanitizer keeps what was freed"
else
  small=$(peak 4096) large=$(peak 65536)
  # Only the start of a long text is tokenized.
  yes 'One fine day, the cat sat.' | head -c 50000000 >"$D/long.txt"
  start=$("$B/tests/tool_rusage" "$collect" $real --text "$D/long.txt" --tokens 1024 --threads 1 \
    --moments -q -o "$D/q.h5" 2>&1 | tail -1 | cut -d' ' -f2)
  check start_of_a_long_text sh -c "echo '$start MiB' && awk 'BEGIN { exit !($start <= 150) }'"
  rm "$D/long.txt"
  check peak_memory sh -c "echo '4K tokens: $small MiB, 64K: $large MiB' && awk 'BEGIN { exit !($large <= 1.1 * $small) }'"
fi

# ---- --untrained: equal seeds give equal moments, other seeds and the trained weights give others ----
untrained() { "$B/bin/kvdim-collect" data/models/kvdim-6m --text data/texts/articles.txt --tokens 64 --seq-len 64 --moments -q "$@" && "$B/bin/kvdim-spectrum" "$D/untrained.h5" --pair k --no-bases -q -o "$D/s.h5" && h5dump -d /k/sigma -y "$D/s.h5" | sed '1d; /ATTRIBUTE/,$d' | md5sum; }
a=$(untrained --untrained 1 -o "$D/untrained.h5"); rm -f "$D"/*.h5
b=$(untrained --untrained 1 -o "$D/untrained.h5"); rm -f "$D"/*.h5
c=$(untrained --untrained 2 -o "$D/untrained.h5"); rm -f "$D"/*.h5
d=$(untrained -o "$D/untrained.h5")
if [ -n "$a" ] && [ "$a" = "$b" ] && [ "$a" != "$c" ] && [ "$a" != "$d" ]
then ok "untrained weights follow the seed"; else not_ok "untrained weights follow the seed" "$a" "$b" "$c" "$d"; fi
