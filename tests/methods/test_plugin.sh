#!/bin/sh
# --plugin: the examples build against include/ alone, act and count their bytes; a copy of a method gives its rows; what breaks a
# rule of the headers is refused in one line.
. tests/lib/cases.sh
MODEL=data/models/kvdim-6m
TEXT="--text data/texts/stories.txt --tokens 400 --seq-len 200"
EVAL="$B/bin/kvdim-eval $MODEL $TEXT -q"

build() { # build NAME SOURCE [OPTION...]
  so=$1 from=$2; shift 2
  ${CC:-cc} -std=c11 -Wall -Wextra -Wpedantic -Werror -O2 -shared -fPIC -Iinclude "$@" "$from" -o "$D/$so.so"
}
check "the token example builds" build longkeys examples/plugin/longkeys.c
check "the bits example builds" build signs examples/plugin/signs.c
check "the copy of streaming builds" build streaming tests/tools/plugin_streaming.c
check "the hostile plugin builds" build hostile tests/tools/plugin_hostile.c
sed -n '/^```c$/,/^```$/p' docs/adding.md | sed '1d;$d' >"$D/adding.c"
check "docs/adding.md shows the token example" cmp "$D/adding.c" examples/plugin/longkeys.c
for f in examples/plugin/*.c; do is "$f has at most 60 lines" yes "$([ "$(wc -l <"$f")" -le 60 ] && echo yes || wc -l <"$f")"; done
P="--plugin $D/longkeys.so --plugin $D/signs.so --plugin $D/streaming.so"

# ---- bytes by hand: prompts of 100 tokens in sequences of 200 -----------------------------------
# After step j of 100 a head holds 25 + j of 100 + j entries. signs: 64 bits of signs and 4 scales of 16 bits in place of 64 numbers of
# 16 bits, but for the newest 32 entries.
if $EVAL --prompt 100 --cache f16 --json $P --method longkeys,budget=0.25 --method signs --method signs,group=64 \
     --method longkeys+signs,budget=0.25 -o "$D/a.h5" >"$D/a.json" 2>"$log"; then
  values cache_share "$D/a.json" | tr '\n' ' ' >"$D/shares"
  if awk '{ for (j = 1; j <= 100; j++) { dense += 100 + j; kept += 25 + j; coded += 68 + j; both += j < 7 ? 0 : j - 7 }
            want[1] = 1; want[2] = kept / dense; want[3] = (32 * 100 + coded / 8) / dense
            want[4] = (32 * 100 + coded * 80 / 1024) / dense
            n = 0; for (j = 1; j <= 100; j++) n += 25 + j <= 32 ? 25 + j : 32 + (25 + j - 32) / 8; want[5] = n / dense
            for (i = 1; i <= 5; i++) if ($i - want[i] > 1e-5 || want[i] - $i > 1e-5) { print i, $i, want[i]; wrong = 1 } }
          END { exit wrong || NR != 1 }' "$D/shares" >"$log"; then ok "bytes of both examples by hand"; else not_ok "bytes of both examples by hand"; fi
  values kl "$D/a.json" | awk 'NR > 1 && !($1 > 1e-4 && $1 < 5) { wrong = 1 } END { exit wrong || NR != 5 }' &&
    ok "both examples act" || not_ok "both examples act" "$(values kl "$D/a.json")"
else not_ok "bytes of both examples by hand"; fi

# ---- a copy of a built-in method is that method ----------------------------------------------------
for name in streaming mystreaming layerstreaming; do
  $EVAL --prompt 60 $P --json --method $name,recent=0.3/0.1,sink=2 --method $name+kivi,residual=32 -o "$D/$name.h5" 2>"$log" |
    sed -n '/"rows"/,$p' | sed -e "s/$name/streaming/g" -e '/"seconds\|tokens_per/d' >"$D/$name.json"
done
for name in mystreaming layerstreaming; do
  if [ -s "$D/streaming.json" ] && cmp "$D/streaming.json" "$D/$name.json" >"$log" 2>&1; then ok "$name gives the rows of streaming"
  else not_ok "$name gives the rows of streaming" "$(diff "$D/streaming.json" "$D/$name.json" | head -20)"; fi
done

# ---- keys, lists, searches, tasks, times ------------------------------------------------------------
check "--list-methods after --plugin, in either order" sh -c "$B/bin/kvdim-eval --list-methods --plugin $D/longkeys.so | grep -q 'longkeys.budget from 0.9 to 0.1' &&
  $B/bin/kvdim-eval --plugin=$D/signs.so --list-methods | grep -q '^  signs  *bits: a sign'"
check "--method before --plugin" $EVAL --prompt 100 --method longkeys $P -o "$D/b.h5"
check "--sweep" sh -c "$EVAL --prompt 100 $P --json --method longkeys --sweep 3 -o $D/b.h5 >$D/b.json && [ \$(grep -c '\"method\": \"longkeys\"' $D/b.json) -eq 3 ]"
check "--target" sh -c "$EVAL --prompt 100 $P --json --method longkeys --target 0.9 -o $D/b.h5 >$D/b.json && grep -q longkeys.budget $D/b.json"
check "kvdim-tasks" "$B/bin/kvdim-tasks" $MODEL $TEXT --prompt 100 --generate 8 $P --method longkeys --method mystreaming+signs,signs.recent=4 -q -o "$D/t.h5"
check "kvdim-jct on the CPU engine" "$B/bin/kvdim-jct" $MODEL --device cpu --input-len 32 --output-len 4 --repeats 1 $P --method none,longkeys,mystreaming -q -o "$D/j.h5"
refused "kvdim-export has no plugins" 2 "kvdim-export has no option '--plugin': kvdim-eval has it" "$B/bin/kvdim-export" $MODEL --spectrum x.h5 $P --method longkeys -o "$D/none.h5"
refused "a key out of its range" 2 "budget" $EVAL $P --method longkeys,budget=2 -o "$D/none.h5"
refused "an unknown key" 2 "unknown key 'bugdet', known are budget, recent, keep_layers" $EVAL $P --method longkeys,bugdet=1 -o "$D/none.h5"
refused "no prompt" 1 "method 'longkeys' decides at the end of a prompt: give --prompt" $EVAL $P --method longkeys -o "$D/none.h5"
refused "the plugin's own reason" 1 "prompt of method 'longkeys' failed: budget 0.01 keeps none of 50 tokens" $EVAL $P --prompt 50 --method longkeys,budget=0.01 -o "$D/none.h5"

# ---- provenance and --resume -----------------------------------------------------------------------
h5dump -A "$D/a.h5" >"$D/attributes"
grep -qF "$D/longkeys.so 1.0, $D/signs.so 1.0, $D/streaming.so 2.5" "$D/attributes" && [ "$(grep -c 'streaming.so"' "$D/attributes")" -eq 1 ] &&
  ok "results record path, hash and version" || not_ok "results record path, hash and version" "$(grep plugin -A8 "$D/attributes")"
again() { "$B/bin/kvdim-eval" $MODEL $TEXT --prompt 100 --resume --plugin "$D/again.so" --method longkeys -o "$D/r.h5" 2>&1; }
cp "$D/longkeys.so" "$D/again.so"
again >/dev/null
check "a complete result is not computed again" sh -c "echo '$(again)' | grep -q 'nothing to do'"
build again examples/plugin/longkeys.c -O0
check "a plugin built anew is another run" sh -c "! echo '$(again)' | grep -q 'nothing to do'"

# ---- files that are no plugins ----------------------------------------------------------------------
load() { name=$1 text=$2; shift 2; refused "$name" 2 "$text" $EVAL "$@" --method none -o "$D/none.h5"; }
echo text >"$D/text.so"
load "no file" "plugin '$D/no.so': cannot open it: No such file" --plugin "$D/no.so"
load "a folder" "plugin '$D': it is not a file" --plugin "$D"
load "no library" "plugin '$D/text.so': cannot load it as a shared library" --plugin "$D/text.so"
head -c 6000 "$D/signs.so" >"$D/half.so"
load "a library that was cut off" "plugin '$D/half.so': it is cut off: it has 6000 bytes of at least" --plugin "$D/half.so"
echo 'int kvdim_plugin_v1 = 1;' >"$D/variable.c"
check "a library with a variable builds" build variable "$D/variable.c"
load "a variable in place of the function" "plugin '$D/variable.so': it has no function kvdim_plugin_v1" --plugin "$D/variable.so"
load "the same plugin twice" "plugin '$D/signs.so' already has a method of this name" --plugin "$D/signs.so" --plugin "$D/signs.so"
table=0
for text in "'zack': kvdim has a method of this name" "its name is not 1 .. 24 letters" "axis is 77" "struct_size is 8, this kvdim has" \
  "key 'how' has the default 9999" "key 'how' has no help" "key 'how' is declared twice" "n_keys is 4000000000" "sweep_key 'nothing' is none" \
  "needs has the unknown bits 0xff00" "entry_bits is" "it has step, but neither prompt" "methods 0 and 1 have the same name" \
  "method 1: 'hostilebits': it has no function 'code'" "method 1: its table is NULL" "returned ABI version 999, this kvdim has 1" \
  "returned struct_size 3" "version is not one line" "n_methods is 4000000000" "it has no function kvdim_plugin_v1" "returned NULL"; do
  table=$((table + 1))
  build table tests/tools/plugin_hostile.c -DTABLE=$table 2>"$log" || { not_ok "table $table builds"; continue; }
  load "table: $text" "plugin '$D/table.so': " --plugin "$D/table.so"
  grep -qF -- "$text" "$log" || not_ok "table: $text" "$(cat "$log")"
done

# ---- answers that break a rule: one line, status 2 ---------------------------------------------------
answer() { # answer METHOD,how=N STATUS TEXT
  refused "$1: $3" "$2" "plugin '$D/hostile.so': $3" $EVAL --prompt 100 --plugin "$D/hostile.so" --method "$1" -o "$D/none.h5"
  [ "$(wc -l <"$log")" -eq 1 ] || not_ok "$1 in one line"
}
check "the hostile plugin when it behaves" $EVAL --prompt 100 --plugin "$D/hostile.so" --method hostile,hostilebits -o "$D/b.h5"
of="of method 'hostile'"
for at in "0 prompt 100" "20 step 101" "40 select 101"; do
  set -- $at
  answer hostile,how=$(($1 + 1)) 2 "$2 $of chose $(($3 + 7)) of $3 entries, not 1 .. $3"
  answer hostile,how=$(($1 + 2)) 2 "$2 $of chose 18446744073709551615 of $3 entries"
  answer hostile,how=$(($1 + 3)) 2 "$2 $of chose 0 of $3 entries"
  answer hostile,how=$(($1 + 4)) 2 "$2 $of chose entry 0 after entry 1: they must rise"
  answer hostile,how=$(($1 + 5)) 2 "$2 $of chose entry 0 after entry 0: they must rise"
  answer hostile,how=$(($1 + 6)) 2 "$2 $of chose entry 4294967295 of $3"
  answer hostile,how=$(($1 + 7)) 2 "$2 $of wrote beyond its list of $3 entries"
  answer hostile,how=$(($1 + 8)) 1 "$2 $of failed: xxxxxxxx"
  answer hostile,how=$(($1 + 9)) 1 "$2 $of failed: it gave no reason"
done
answer hostile,how=10 2 "state_bytes $of returned more than 1073741824 bytes"
answer hostile,how=11 2 "window $of returned 18446744073709551615 rows, more than 16777216"
answer hostile,how=60 2 "select_bits $of returned a number of bits that is negative or not finite"
answer hostile,how=61 2 "select_bits $of returned a number of bits that is negative or not finite"
of="of method 'hostilebits'"
for how in 1 2 3; do answer hostilebits,how=$how 2 "window $of did not set a window of 0 .. 16777216 and a block of 1 .. 1048576"; done
answer hostilebits,how=4 2 "code $of decoded dimension 63 of the key at position 99 to"
answer hostilebits,how=5 2 "code $of counted -1 bits of payload and 1 of side information"
answer hostilebits,how=6 2 "code $of counted nan bits of payload"
answer hostilebits,how=7 2 "code $of counted 6400 bits of payload and inf of side information"
answer hostilebits,how=8 2 "code $of counted 6400 bits of payload and -1e+300 of side information"
answer hostilebits,how=9 2 "code $of decoded dimension 0 of the key at position 50 to nan"
answer hostilebits,how=10 2 "code $of wrote beyond its 100 x 64 numbers"
answer hostilebits,how=11 1 "code $of failed: layer 0 has?a line feed"

# ---- the dims axis ----------------------------------------------------------------------------------
check "the dims plugin builds" build dims tests/tools/plugin_dims.c
"$B/bin/kvdim-collect" $MODEL --text data/texts/articles.txt --tokens 1024 --seq-len 256 -q -o "$D/d.h5" || not_ok "calibration"
# firstdims stores 2 x 32 of 2 x 64 numbers; evenchannels stores 32 of 64 numbers of the keys of the prompt, and 64 bits that say which.
if $EVAL --prompt 100 --cache f16 --json --plugin "$D/dims.so" --plugin "$D/longkeys.so" --calibration "$D/d.h5" --method firstdims --method firstdims,width=32 --method fitteddims,width=32 \
     --method evenchannels --method longkeys+firstdims,longkeys.budget=0.25,width=32 -o "$D/a.h5" >"$D/a.json" 2>"$log"; then
  values cache_share "$D/a.json" | tr '\n' ' ' >"$D/shares"
  if awk '{ for (j = 1; j <= 100; j++) { dense += 100 + j; kept += 25 + j; even += 75 + j + 64 / 2048 }
            want[1] = 1; want[2] = 1; want[3] = 0.5; want[4] = 0.5; want[5] = even / dense; want[6] = kept / dense / 2
            for (i = 1; i <= 6; i++) if ($i - want[i] > 1e-5 || want[i] - $i > 1e-5) { print i, $i, want[i]; wrong = 1 } }
          END { exit wrong || NR != 1 }' "$D/shares" >"$log"; then ok "bytes of dims plugins by hand"; else not_ok "bytes of dims plugins by hand"; fi
  values kl "$D/a.json" >"$D/kl"
  if awk 'NR == 2 && !($1 < 1e-5) { wrong = 1 } NR == 3 { first = $1 } NR == 4 && $1 != first { wrong = 1 } NR > 2 && !($1 > 1e-3) { wrong = 1 } END { exit wrong || NR != 6 }' "$D/kl"
  then ok "dims plugins at full width are the model, cut ones are not"; else not_ok "dims plugins at full width are the model, cut ones are not" "$(cat "$D/kl")"; fi
else not_ok "dims plugins run"; fi
$EVAL --prompt 100 --cache f16 --json --seeds 2 --plugin "$D/dims.so" --method seededdims,width=32 -o "$D/a.h5" 2>"$log" >"$D/a.json"
is "bytes of a mean over seeds" "1.0 0.5 0.5 0.5 " "$(values cache_share "$D/a.json" | tr '\n' ' ')"
refused "rows without calibration" 1 "method 'fitteddims' needs activations of calibration text: give --calibration" $EVAL --plugin "$D/dims.so" --method fitteddims -o "$D/none.h5"
wrong() { refused "$1: $3" "$2" "plugin '$D/dims.so': $3" $EVAL --prompt 100 --plugin "$D/dims.so" --method "$1" -o "$D/none.h5"; }
of="of method 'firstdims'"
wrong firstdims,how=1 2 "project $of set the widths 0 and 64, not 1 .. 64"
wrong firstdims,how=2 2 "project $of set the widths 64 and 2147483647, not 1 .. 64"
wrong firstdims,how=3 2 "project $of set number 64 of a_k to nan"
wrong firstdims,how=4 2 "project $of wrote beyond the 64 x 64 numbers of b_v"
wrong firstdims,how=5 1 "project $of failed: it gave no reason"
of="of method 'evenchannels'"
wrong evenchannels,how=6 2 "prune $of keeps none of 64 channels"
wrong evenchannels,how=7 2 "prune $of set channel 0 to 9, not 0 or 1"
wrong evenchannels,how=8 2 "prune $of spares the newest 18446744073709551615 of 100 tokens"
wrong evenchannels,how=9 2 "prune $of wrote beyond its 64 channels"
wrong evenchannels,how=10 1 "prune $of failed: it gave no reason"

# ---- the layers axis --------------------------------------------------------------------------------
check "the layers plugin builds" build layers tests/tools/plugin_layers.c
# Prompts of 100 tokens take half of their room, steps all of it.
if $EVAL --prompt 100 --cache f16 --json --plugin "$D/layers.so" --method meanlayers -o "$D/a.h5" >"$D/a.json" 2>"$log"; then
  is "bytes of a layers plugin by hand" "$(awk 'BEGIN { for (j = 1; j <= 100; j++) { n += 50 + j; dense += 100 + j } printf "%.5f", n / dense }')" \
    "$(values cache_share "$D/a.json" | awk 'NR == 2 { printf "%.5f", $1 }')"
else not_ok "a layers plugin runs"; fi
# --seeds 2 from 3 on: a mean, and the rows of seeds 3 and 4, in which different layers are merged.
seeds() { $EVAL --prompt 100 --cache f16 --json --plugin "$D/layers.so" --method drawnlayers "$@" -o "$D/a.h5" 2>"$log" | sed -n 's/^ *"kl": \(.*\),/\1/p' | sed 1d; }
seeds --seed 3 --seeds 2 | sed 1d >"$D/both"
{ seeds --seed 3; seeds --seed 4; } >"$D/each"
if cmp "$D/both" "$D/each" >"$log" 2>&1 && [ "$(sort -u "$D/each" | wc -l)" -eq 2 ]; then ok "--seed and --seeds reach a plugin"
else not_ok "--seed and --seeds reach a plugin" "$(cat "$D/both" "$D/each")"; fi
wrong() { refused "$1: $3" "$2" "plugin '$D/layers.so': $3" $EVAL --prompt 100 --plugin "$D/layers.so" --method "$1" -o "$D/none.h5"; }
of="of method 'meanlayers'"
wrong meanlayers,how=1 2 "group $of returned 0 layers from layer 0 on, of 6 layers"
wrong meanlayers,how=2 2 "group $of returned 7 layers from layer 0 on, of 6 layers"
wrong meanlayers,how=3 2 "group $of returned -2147483648 layers from layer 0 on, of 6 layers"
wrong meanlayers,how=4 2 "merge $of counted -1 numbers and 0 bits"
wrong meanlayers,how=5 2 "merge $of counted nan numbers and 0 bits"
wrong meanlayers,how=6 2 "merge $of counted 12800 numbers and inf bits"
wrong meanlayers,how=7 2 "merge $of set number 3 of layer 1 to inf"
wrong meanlayers,how=8 2 "merge $of wrote beyond the rows of layer 1"
wrong meanlayers,how=9 1 "merge $of failed: it gave no reason"
