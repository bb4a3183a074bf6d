#!/bin/sh
# Names a user may give by mistake: an output that is an input, inputs that never end, standard streams that are closed.
. tests/lib/cases.sh
PY=${PYTHON:-/usr/bin/python3}

# refused NAME TEXT COMMAND...: status 1, one line with the text, at once
refused() {
  name=$1 text=$2; shift 2
  timeout -k 1 10 "$@" >"$D/out" 2>"$D/err" </dev/null; rc=$?
  if [ $rc -eq 1 ] && grep -qF -- "$text" "$D/err" && [ "$(grep -cv ": warning: " "$D/err")" -eq 1 ]; then ok "$name"
  else not_ok "$name" "status $rc, wanted 1 and '$text'" "$(cat "$D/err")"; fi
}

"$B/tests/tool_checkpoint" -v 40 "$D/model" &&
  awk 'BEGIN { for (s = 0; s < 2; s++) for (i = 0; i < 50; i++) printf "%d%s", (s * 17 + i * i) % 40, i < 49 ? "," : "\n" }' >"$D/ids.csv" &&
  "$B/bin/kvdim-collect" "$D/model" --ids "$D/ids.csv" --moments -q -o "$D/m.h5" &&
  "$B/bin/kvdim-spectrum" "$D/m.h5" -q -o "$D/s.h5" && "$B/bin/kvdim-spectrum" "$D/m.h5" -q -o "$D/s2.h5" || { not_ok prepare prepare; exit 1; }

# ---- an output that is an input ----------------------------------------------------------------
mkdir "$D/keep" && cp "$D/m.h5" "$D/s.h5" "$D/ids.csv" "$D/keep" && cp -r "$D/model" "$D/keep"
ln -s m.h5 "$D/link.h5"
refused "spectrum over its moments" "it is the input" "$B/bin/kvdim-spectrum" "$D/m.h5" -q -o "$D/m.h5"
refused "by way of a link" "link.h5': it is the input" "$B/bin/kvdim-spectrum" "$D/m.h5" -q -o "$D/link.h5"
refused "rates over their spectrum" "it is the input" "$B/bin/kvdim-fit" "$D/s.h5" --overall-p 0.5 -q -o "$D/s.h5"
refused "similarity over one of its files" "it is the input" "$B/bin/kvdim-similarity" "$D/s.h5" "$D/s2.h5" -q -o "$D/s.h5"
refused "accuracy over the ids" "it is the input" "$B/bin/kvdim-eval" "$D/model" --ids "$D/ids.csv" --spectrum "$D/s.h5" --method zack,p=0.5 -q -o "$D/ids.csv"
refused "moments over a checkpoint's weights" "it would be part of the input folder" \
  "$B/bin/kvdim-collect" "$D/model" --ids "$D/ids.csv" --moments -q -o "$D/model/model.safetensors"
refused "moments beside a checkpoint's weights" "it would be part of the input folder" \
  "$B/bin/kvdim-collect" "$D/model" --ids "$D/ids.csv" --moments="$D/model/m.h5" -q -o "$D/act.h5"
if diff -r "$D/keep/model" "$D/model" >"$D/log" && cmp "$D/keep/m.h5" "$D/m.h5" && cmp "$D/keep/s.h5" "$D/s.h5" && cmp "$D/keep/ids.csv" "$D/ids.csv"
then ok "inputs are as they were"; else not_ok "inputs are as they were" "$(cat "$D/log")"; fi
for f in "$D"/*.lock "$D"/*.partial "$D"/*.state "$D"/model/*.lock; do [ -e "$f" ] && not_ok "nothing is left" "$f"; done

# ---- inputs that never end ---------------------------------------------------------------------
mkdir -p "$D/models--a--b/snapshots"
refused "a folder of Hugging Face's cache" "models--a--b' holds revisions of a model: give one folder of its snapshots/" \
  "$B/bin/kvdim-collect" "$D/models--a--b" --ids "$D/ids.csv" --moments -q -o "$D/x.h5"
"$B/bin/kvdim-collect" "$D/model/." --ids "$D/ids.csv" --moments -q -o "$D/dot.h5" 2>"$D/err"
is "a model called by a point has the name of its folder" '"model"' "$(attribute "$D/dot.h5" /model/name)"

cp "$D/ids.csv" "$D/notes.txt"
for p in "kvdim-spectrum $D/m.h5" "kvdim-eval $D/model --ids $D/ids.csv --spectrum $D/s.h5 --method zack,p=0.5" \
  "kvdim-jct $D/model --method none --input-len 8 --output-len 2"; do
  refused "over a text: ${p%% *}" "notes.txt': it exists and is not an HDF5 file" "$B/bin/"$p -q -o "$D/notes.txt"
done
cmp "$D/ids.csv" "$D/notes.txt" && ! ls "$D"/notes.txt.* 2>/dev/null && ok "the text is whole" || not_ok "the text is whole" "$(ls "$D")"

mkfifo "$D/pipe"
for p in "kvdim-spectrum $D/pipe" "kvdim-fit $D/pipe --overall-p 0.5" "kvdim-similarity $D/s.h5 /dev/zero" \
  "kvdim-collect $D/model --ids $D/pipe" "kvdim-eval $D/model --ids $D/ids.csv --spectrum /dev/zero" "kvdim-report $D/pipe"; do
  refused "pipe or device: ${p%% *}" "a " "$B/bin/"$p -q -o "$D/x.h5"
done

# A pipe next to the weights is not part of the checkpoint's hash, but is opened as its tokenizer.
cp -r "$D/model" "$D/piped" && rm -f "$D/piped/tokenizer.json" && mkfifo "$D/piped/tokenizer.json"
for p in "kvdim-eval $D/piped --text $D/notes.txt --method h2o" "kvdim-report $D/s.h5 --no-plots --timeline $D/pipe" \
  "kvdim-attn --phase decode --dims $D/pipe"; do
  refused "a pipe is no input: ${p%% *}" "pipe or device, not a file" "$B/bin/"$p -q -o "$D/piped.h5"
done

# ---- texts that are none -------------------------------------------------------------------------
# Names and labels go into files and summaries that are UTF-8: none is written that no reader takes.
bytes=$(printf 'b\377d')
"$B/bin/kvdim-fit" "$D/s.h5" --overall-p 0.5 --json -o "$D/$bytes.h5" >"$D/out" 2>"$D/err"; rc=$?
if [ $rc -eq 2 ] && grep -q "argument 6 is not valid UTF-8 at byte" "$D/err" && [ ! -e "$D/$bytes.h5" ]; then ok "a name that is not UTF-8"
else not_ok "a name that is not UTF-8" "status $rc" "$(cat "$D/err")"; fi
if "$PY" -c 'import h5py' 2>/dev/null; then
  cp "$D/s.h5" "$D/bytes.h5"
  "$PY" -c 'import sys, h5py, numpy as n
with h5py.File(sys.argv[1], "a") as f: f.attrs["corpus_hash"] = n.bytes_(b"xxh3:\xff\xfe")' "$D/bytes.h5"
  refused "an attribute that is not UTF-8" "attribute '/corpus_hash' is not valid UTF-8 at byte 5" "$B/bin/kvdim-export" "$D/model" --spectrum "$D/bytes.h5" --method zack,p=0.5 -q -o "$D/folded"
else echo "skip an attribute that is not UTF-8: no h5py"; fi

# A label is made from the texts' names. A long one is cut between characters, and is printable.
long=$(awk 'BEGIN { for (i = 0; i < 62; i++) printf "\303\251" }')
for name in "$long" "a$long" "$(printf 'two\nlines \033[31m')"; do
  cp "$D/ids.csv" "$D/$name.csv"
  check "a label from the name of a text" "$B/bin/kvdim-collect" "$D/model" --ids "$D/$name.csv" --moments -q -o "$D/label.h5"
  check "which is read again" "$B/bin/kvdim-spectrum" "$D/label.h5" -o "$D/label.s.h5"
  LC_ALL=C grep -q '[[:cntrl:]]' "$log" && not_ok "which is printable" || ok "which is printable"
done
"$B/bin/kvdim-spectrum" "$D/m.h5" --label "$(printf 'a\302\2331m')" -q -o "$D/label.h5" 2>"$D/err"; rc=$?
is "a label with a control character beyond ASCII" "2 kvdim-spectrum: --label: byte 2 is the control character 155" "$rc $(cat "$D/err")"

# ---- closed streams ------------------------------------------------------------------------------
# What is printed must not land in the file that took the place of a stream.
if "$B/bin/kvdim-collect" "$D/model" --ids "$D/ids.csv" --moments --batch 50 --save-every 0 -o "$D/c.h5" <&- 2>&- >"$D/out" &&
   "$B/bin/kvdim-spectrum" "$D/c.h5" -q -o "$D/c.s.h5" 2>"$D/err"; then ok "closed stdin and stderr"
else not_ok "closed stdin and stderr" "$(cat "$D/err")"; fi
"$B/bin/kvdim-fit" "$D/s.h5" --overall-p 0.5 -o "$D/c.r.h5" <&- >&- 2>"$D/err"
[ $? -eq 1 ] && grep -q "cannot write to standard output" "$D/err" && ok "closed stdout is an error" || not_ok "closed stdout is an error" "$(cat "$D/err")"
# The reader of standard output ends before the program begins, as that of `| head -1` may.
mkfifo "$D/reader"
(exec 3<"$D/reader"; exec 3<&-; : >"$D/gone") &
(until [ -e "$D/gone" ]; do sleep 0.01; done; exec "$B/bin/kvdim-fit" "$D/s.h5" --overall-p 0.5 -o "$D/pipe.r.h5" 2>"$D/err") >"$D/reader"
[ $? -eq 1 ] && grep -q "^kvdim-fit: cannot write to standard output: Broken pipe$" "$D/err" && h5diff "$D/c.r.h5" "$D/pipe.r.h5" /qk/kept &&
  ok "a reader that has ended loses no result" || not_ok "a reader that has ended loses no result" "$(cat "$D/err")" "$(ls "$D")"
for o in "kvdim-eval --list-methods" "kvdim-fit --help" "kvdim-collect --shape list"; do
  "$B/bin/${o%% *}" ${o#* } >&- 2>"$D/err"
  [ $? -eq 1 ] && grep -q "^${o%% *}: cannot write to standard output" "$D/err" && ok "closed stdout of $o" || not_ok "closed stdout of $o" "$(cat "$D/err")"
done
