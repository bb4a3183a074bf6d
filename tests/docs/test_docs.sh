#!/bin/sh
# The pages under docs/: links lead somewhere, functions, sources and options exist, the examples run and agree.
. tests/lib/cases.sh
verdict() { # name: empty $D/log is good
  if [ -s "$D/log" ]; then echo "not ok $1"; sed 's/^/# /' "$D/log"; else echo "ok $1"; fi
}

# Every relative link and anchor of every tracked page. Anchors are those that GitHub makes of headings.
"$PYTHON" - >"$D/log" 2>&1 <<'END'
import glob
import os
import re
import subprocess


def prose(path):
    """The text of a page without code blocks and code spans."""
    text = re.sub(r"^```.*?^```", "", open(path, encoding="utf-8").read(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(path):
    """Anchors of the headings of a page; the n-th repetition of a heading ends in -n."""
    text = re.sub(r"^```.*?^```", "", open(path, encoding="utf-8").read(), flags=re.MULTILINE | re.DOTALL)
    seen = {}
    for heading in re.findall(r"^#+ (.*)", text, re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "]", heading).lower()).strip().replace(" ", "-")
        n = seen[name] = seen.get(name, -1) + 1
        yield f"{name}-{n}" if n else name


listed = subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True)
pages = listed.stdout.split() or glob.glob("*.md") + glob.glob("docs/*.md")
assert len(pages) > 10, pages
for page in pages:
    for link in re.findall(r"\]\(\s*([^)\s]+)\s*\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(page), file)) if file else page
        if not os.path.exists(target):
            print(f"{page}: no {link}")
        elif anchor and target.endswith(".md") and anchor not in set(anchors(target)):
            print(f"{page}: no heading for {link}")
END
[ $? -eq 0 ] || echo "the script of links failed" >>"$D/log"
verdict "links"

for page in docs/*.md; do
  name=$(basename "$page")
  [ "$name" = README.md ] || grep -qF "($name)" docs/README.md || echo "docs/README.md does not list $name"
done >"$D/log"
verdict "index"

find src -name "*.[ch]" -exec cat {} + >"$D/source"
grep -ohE '\bkvd_[a-z0-9_]+' docs/*.md | sort -u | while read -r name; do
  grep -qwF "$name" "$D/source" || echo "no $name in src"
done >"$D/log"
verdict "functions"

grep -ohE '\b(src|tests|data|docs)/[A-Za-z0-9_/.-]*[A-Za-z0-9_/]' docs/*.md | sort -u | while read -r path; do
  [ -e "$path" ] || echo "no $path"
done >"$D/log"
verdict "files"

for p in "$B"/bin/kvdim-*; do "$p" --help; done >"$D/help" 2>&1
# Options of our programs: the words after kvdim-... in code, or alone in backquotes.
grep -ohE '(^|[ `(])--[a-z][a-z0-9-]*' docs/*.md | grep -oE '\-\-[a-z0-9-]+' | grep -vxE -- '--cflags|--libs' | sort -u | while read -r option; do
  grep -qE -- "(^|[ ,[])$option([=[ ,]|\$)" "$D/help" || echo "no program has $option"
done >"$D/log"
verdict "options"

# Examples in --help are whole commands on one line, with options that their programs have.
for p in "$B"/bin/kvdim-*; do
  "$p" --help | sed -n '/^Examples*:$/,/^$/{s/^  //p}' | sed 's/^mpirun -n 4 //' | while read -r program rest; do
    "$B/bin/$program" --help >"$D/one" 2>&1 || echo "$p: '$program $rest' is no command of ours"
    for word in $rest; do
      case $word in --*) grep -qE -- "(^|[ ,])${word%%=*}([=[ ]|\$)" "$D/one" || echo "$p: $program has no ${word%%=*}" ;; esac
    done
    case $rest in *' -o '*) ;; *) echo "$p: '$program $rest' has no output" ;; esac
  done
done >"$D/log"
verdict "examples of --help"

grep -ohE '\b[ZFD]-[0-9]+\b' docs/*.md src/*/*.[ch] src/*/*/*.[ch] | sort -u | while read -r number; do
  grep -qwF -- "$number" docs/readings.md || echo "docs/readings.md says nothing of $number"
done >"$D/log"
verdict "readings"

# ---- examples ----------------------------------------------------------------------------------
"$B/tests/tool_synthetic" moments "$D/m.h5" 300 1 label=wiki && "$B/bin/kvdim-spectrum" "$D/m.h5" --pair qk,vw -q -o "$D/s.h5" || exit 1
if "$B/tests/read_spectrum" "$D/s.h5" vw 1 0 >"$D/c.txt" 2>&1 && grep -q '^orthogonal: max |R^T R - I| is below' "$D/c.txt" &&
  grep -q '^energy kept at 8 of 8 dimensions: 1.000000$' "$D/c.txt" && [ "$(grep '^sigma' "$D/c.txt" | wc -w)" -eq 9 ]; then
  echo "ok example in C"
else
  echo "not ok example in C"; sed 's/^/# /' "$D/c.txt"
fi
if "$B/tests/read_spectrum" "$D/m.h5" qk 0 0 >/dev/null 2>&1; then echo "not ok example in C refuses moments"; else echo "ok example in C refuses moments"; fi
if "$PYTHON" -c 'import h5py, numpy' 2>/dev/null; then
  "$PYTHON" docs/examples/read_spectrum.py "$D/s.h5" vw 1 0 >"$D/python.txt" 2>&1
  if cmp -s "$D/c.txt" "$D/python.txt"; then echo "ok example in Python prints the same"; else echo "not ok example in Python prints the same"; diff "$D/c.txt" "$D/python.txt" | sed 's/^/# /'; fi
  # The words of formats.md on bfloat16, by its own lines.
  "$B/tests/tool_synthetic" activations "$D/act.h5" 40 1 dtype=bf16 || exit 1
  (cd "$D" && "$PYTHON" - "$OLDPWD/docs/formats.md") >"$D/log" 2>&1 <<'END'
import re
import sys
blocks = [b for b in re.findall(r"```python\n(.*?)```", open(sys.argv[1]).read(), re.S) if "[3, 0]" in b and "checksums" not in b]
assert len(blocks) == 2, len(blocks)
first, second = {}, {}
exec(blocks[0].replace("[3, 0]", "[1, 0]"), first)
exec(blocks[1].replace("[3, 0]", "[1, 0]"), second)
assert first["k"].dtype == "float32" and first["k"].shape == (40, 8) and abs(first["k"]).max() > 0
assert (first["k"] == second["k"]).all()
END
  if [ $? -eq 0 ] && grep -qx 'float32 2' "$D/log"; then echo "ok bfloat16 as formats.md reads it"; else echo "not ok bfloat16 as formats.md reads it"; sed 's/^/# /' "$D/log"; fi
else
  echo "skip example in Python: no h5py for $PYTHON"
fi

# docs/methods.md has a heading for every name that --list-methods lists, and README gives their number.
names=$($B/bin/kvdim-eval --list-methods | sed -n 's/^  \([a-z0-9]*\)  *[a-z+]*: .*/\1/p')
missing=$(for name in none $names; do
  grep -Eq "^###? $name\$" docs/methods.md || echo "$name"
done)
n=$(echo "$names" | wc -l)
if [ "$n" -gt 30 ] && [ -z "$missing" ]; then ok "headings of $n methods"
else not_ok "headings of $n methods" "without a heading:" "$missing"; fi
# Each of these headings links its source, or says that it has none, and says what is stored.
"$PYTHON" - $names >"$D/log" 2>&1 <<'END'
import re
import sys
text = open("docs/methods.md").read()
section = dict(s.split("\n", 1) for s in re.split(r"^## ", text, flags=re.M)[1:])
section.update((name, body) for body in list(section.values()) for name in re.findall(r"^### (.*)", body, re.M))
table = text.split("**Entries that tokens methods hold.**")[1].split("\n\n")[1]
for name in sys.argv[1:]:
    body = section.get(name, "")
    if not re.search(r"\*\*Source\.\*\*(?s:.{0,600}\]\(http| None)", body):
        print(name + " has no link to a source")
    if "**Stores" not in body and f"`{name}`" not in table:
        print(name + " does not say what it stores")
END
[ $? -eq 0 ] || echo "the script of sections failed" >>"$D/log"
verdict "sections of methods name their source and what is stored"
# The list without `none`, which the pattern above does not match.
if tr '\n' ' ' <README.md | grep -q "scores $n compression methods"; then ok "the number of methods in README"
else not_ok "the number of methods in README" "--list-methods lists $n"; fi

# --list-methods names every key that the dims methods read.
list=$($B/bin/kvdim-eval --list-methods)
missing=$(sed -n 's/^    {"\([a-z_.]*\)", KEY_.*/\1/p' src/methods/method_keys.c | while read -r key; do
  echo "$list" | grep -qE "(^| )$key([ ,]|\$)" || echo "$key"
done)
is "keys that --list-methods leaves out" "" "$missing"
