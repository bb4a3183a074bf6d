#!/bin/sh
# The Makefile: which flags a build has, what it prints, what it says of a missing header, and make install and uninstall.
# Nothing is compiled: make only prints its commands (-n), or copies the programs that are in $BUILD.
set -u
B=${BUILD:-build}
D=$(mktemp -d)
trap 'rm -rf "$D"' EXIT
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES CI WERROR V
ok() { echo "ok $1"; }
bad() { echo "not ok $1"; shift; for l in "$@"; do echo "$l" | sed 's/^/# /'; done; }

# ---- warnings are errors in continuous integration alone -----------------------------------------
# commands VARIABLE=VALUE...: the commands that would compile one C file and one CUDA file
cu=$(ls src/*/cuda/*.cu | sed 's,^src/,,; q')
commands() { env "$@" make -n V=1 CUDA=1 MPI=0 CUDA_HOME=/nonexistent BUILD="$D/b" "$D/b/common/err.o" "$D/b/$cu.o"; }
errors() { commands "$@" 2>&1 | grep -E -- '-c src/' | grep -cE -- '-Werror|--Werror'; }
is() { if [ "$2" = "$3" ]; then ok "$1"; else bad "$1" "$2 commands with -Werror, wanted $3" "$(commands "$4" 2>&1 | tail -5)"; fi; }
is "a warning stops no user's build" "$(errors A=1)" 0 A=1
is "a warning stops continuous integration" "$(errors CI=true)" 2 CI=true
is "WERROR=1" "$(errors WERROR=1)" 2 WERROR=1
is "WERROR=0 in continuous integration" "$(errors CI=true WERROR=0)" 0 WERROR=0

# ---- flags of the user are added -------------------------------------------------------------------
added() { # VARIABLE PATTERN: the command that matches has the flag, and those of the build
  env -u CFLAGS -u CPPFLAGS -u LDFLAGS make -n V=1 CUDA=0 MPI=0 BUILD="$D/u" "$1=-DMINE" "$D/u/bin/kvdim-fit" >"$D/out" 2>&1
  grep -E -- "$2" "$D/out" | grep -qE -- '-std=c11 -D_GNU_SOURCE.* -DMINE|-Isrc .* -DMINE|-DMINE .*-ljansson' && ok "$1 is added" || bad "$1 is added" "$(tail -3 "$D/out")"
}
added CFLAGS '-c src/common/err.c'
added CPPFLAGS '-c src/common/err.c'
added LDFLAGS '-o .*/bin/kvdim-fit'

# ---- libraries in folders of their own -------------------------------------------------------------
# links VARIABLE...: the command that links a program, without pkg-config's own packages
mkdir -p "$D/x/usr/include/hdf5/serial" "$D/x/usr/lib/x86_64-linux-gnu/hdf5/serial" "$D/pc"
printf 'Name: HDF5\nDescription: x\nVersion: 1\nLibs: -L/opt/h -lhdf5_openmpi\n' >"$D/pc/hdf5-openmpi.pc"
links() { PKG_CONFIG_LIBDIR=$D/pc make -n V=1 CUDA=0 MPI=0 BUILD="$D/u" "$@" "$D/u/bin/kvdim-fit" >"$D/out" 2>&1; }
links EXTRA_PREFIX="$D/x"
grep -qF -- "-isystem $D/x/usr/include/hdf5/serial" "$D/out" && grep -qF -- "-L$D/x/usr/lib/x86_64-linux-gnu/hdf5/serial" "$D/out" &&
  ok "EXTRA_PREFIX with Debian's HDF5" || bad "EXTRA_PREFIX with Debian's HDF5" "$(tail -3 "$D/out")"
links HDF5_PC=hdf5-openmpi
grep -qE -- '-lhdf5_openmpi_hl .*-lhdf5_openmpi( |$)' "$D/out" && ok "HDF5 of another name" || bad "HDF5 of another name" "$(tail -1 "$D/out")"

# ---- a missing header, a missing compiler --------------------------------------------------------
# A compiler that does not find the headers named in $LACKS.
cat >"$D/cc" <<'EOF'
#!/bin/sh
case " $* " in *' -E '*)
  cat >"$0.in"
  for h in $LACKS; do grep -qF "<$h>" "$0.in" && exit 1; done ;;
esac
exit 0
EOF
chmod +x "$D/cc"
lacks() { # NAME HEADERS TARGET TEXT: one line with the text, and make's own
  LACKS=$2 make CUDA=0 MPI=0 CC="$D/cc" BUILD="$D/l" "$D/l/$3" >"$D/out" 2>&1; rc=$?
  if [ $rc -eq 2 ] && grep -qF "$4" "$D/out" && grep -q 'scripts/setup.sh' "$D/out" && [ "$(grep -cv '^make' "$D/out")" -eq 1 ]
  then ok "$1"; else bad "$1" "status $rc" "$(cat "$D/out")"; fi
}
lacks "a missing header" csv.h common/files/csv.o "no header csv.h:"
lacks "two missing headers" "lapacke.h xxhash.h" common/files/csv.o "no header lapacke.h xxhash.h:"
LACKS= make CUDA=0 MPI=0 CC="$D/cc" BUILD="$D/l" "$D/l/headers" >"$D/out" 2>&1 && [ ! -s "$D/out" ] && ok "no header is missing" ||
  bad "no header is missing" "$(cat "$D/out")"
lacks "the header of the tests" cmocka.h headers-tests "no header cmocka.h:"
if make CUDA=0 MPI=0 CC=/nonexistent/cc BUILD="$D/n" "$D/n/common/files/csv.o" >"$D/out" 2>&1; then bad "no compiler" "status 0"
elif grep -qF "the compiler '/nonexistent/cc' does not run" "$D/out"; then ok "no compiler"; else bad "no compiler" "$(cat "$D/out")"; fi

# ---- a line per file -----------------------------------------------------------------------------
printf '  CC    src/common/files/csv.c\n' >"$D/want"
LACKS= make CUDA=0 MPI=0 CC="$D/cc" BUILD="$D/l" "$D/l/common/files/csv.o" >"$D/out" 2>&1
if cmp -s "$D/out" "$D/want"; then ok "one short line per file"; else bad "one short line per file" "$(cat "$D/out")"; fi
LACKS= make V=1 CUDA=0 MPI=0 CC="$D/cc" BUILD="$D/l" "$D/l/common/files/csv.o" >"$D/out" 2>&1
if grep -q "^$D/cc .* -c src/common/files/csv.c -o $D/l/common/files/csv.o\$" "$D/out" && [ "$(wc -l <"$D/out")" -eq 1 ]; then ok "V=1 shows the command"
else bad "V=1 shows the command" "$(cat "$D/out")"; fi

# ---- a build folder from before a test moved -----------------------------------------------------
mkdir -p "$D/o/tests"
t=$(basename "$(ls tests/*/test_*.c | sed q)" .c)
echo "$D/o/tests/$t: tests/$t.c" >"$D/o/tests/$t.d"
if make -n CUDA=0 MPI=0 BUILD="$D/o" "$D/o/tests/$t" >"$D/out" 2>&1 && grep -q "tests/[a-z]*/$t.c" "$D/out"
then ok "a test that moved"; else bad "a test that moved" "$(tail -3 "$D/out")"; fi

# ---- for editors -----------------------------------------------------------------------------------
mkdir "$D/tree"
ln -s "$PWD"/* "$D/tree"
rm -f "$D/tree/compile_commands.json"
if make -C "$D/tree" CUDA=0 MPI=0 compile_commands.json >"$D/out" 2>&1 &&
  "${PYTHON:-/usr/bin/python3}" -c 'import json, sys; sys.exit(len(json.load(open(sys.argv[1]))) < 100)' "$D/tree/compile_commands.json" 2>>"$D/out"
then ok "compile_commands.json is JSON"; else bad "compile_commands.json is JSON" "$(tail -2 "$D/out")"; fi

# ---- make bench without CUDA ---------------------------------------------------------------------
make -n CUDA=0 MPI=0 BUILD="$D/e" bench 2>&1 | grep -oE 'tests/bench/bench_[a-z_]+\.c' | sort -u >"$D/benches"
for f in $(cat "$D/benches"); do
  ${CC:-cc} -MM -MG -Isrc -Iinclude -Itests -Itests/lib "$f" | tr ' ' '\n' | grep cuda | sed "s,^,$f: ,"
done >"$D/out"
if [ -s "$D/benches" ] && [ ! -s "$D/out" ]; then ok "make bench without CUDA includes no header of CUDA"
else bad "make bench without CUDA includes no header of CUDA" "$(cat "$D/benches" "$D/out")"; fi

# ---- install, uninstall --------------------------------------------------------------------------
# Files of others stay: next to the programs, next to the man pages and in kvdim's own folder.
root="$D/a root" # a folder with a space
p=$root/opt/kvdim
mkdir -p "$p/bin" "$p/share/man/man1" "$p/share/kvdim/widths"
touch "$p/bin/kvdim-mine" "$p/share/man/man1/other.1" "$p/share/kvdim/widths/mine.csv"
(cd "$root" && find . -type f | sort) >"$D/before"
target() { make -o all -o man CUDA=0 MPI=0 BUILD="$B" DESTDIR="$root" PREFIX=/opt/kvdim "$1" >"$D/out" 2>&1; }
if sh scripts/man.sh >"$D/out" 2>&1 && (umask 077 && target install); then
  n=0
  for f in "$B"/bin/kvdim-*; do
    name=$(basename "$f")
    ls src/*/"$(echo "$name" | tr - _)".c >/dev/null 2>&1 || continue # a program of an older revision
    cmp -s "$f" "$p/bin/$name" && [ -s "$p/share/man/man1/$name.1" ] && n=$((n + 1)) || bad "install $name" "not the file of $B/bin, or no man page"
  done
  if [ $n -gt 0 ] && diff -r data/paper "$p/share/kvdim/paper" >"$D/out" && diff -r plots "$p/share/kvdim/plots" >>"$D/out" &&
    grep -q 'kvdim_attend(' "$p/share/man/man3/kvdim-attention.3"
  then ok "install"; else bad "install" "$n programs" "$(cat "$D/out")"; fi
else bad "install" "$(cat "$D/out")"; fi
found=$(find "$p/share/kvdim/paper" "$p/share/kvdim/plots" "$p/lib" "$p/include" "$p/bin" ! -perm -004 ! -name kvdim-mine)
if [ -z "$found" ]; then ok "everybody can read what root installs"; else bad "everybody can read what root installs" "$found"; fi
target uninstall || bad "uninstall" "$(cat "$D/out")"
(cd "$root" && find . -type f | sort) >"$D/after"
if cmp -s "$D/before" "$D/after"; then ok "uninstall removes what install put there, and nothing else"
else bad "uninstall removes what install put there, and nothing else" "$(diff "$D/before" "$D/after")"; fi
[ ! -e "$p/share/kvdim/paper" ] && [ ! -e "$p/share/kvdim/plots" ] && ok "uninstall leaves no empty folder" || bad "uninstall leaves no empty folder"
for v in BUILD PREFIX; do
  make -n $v='a b' >"$D/out" 2>&1; rc=$?
  [ $rc -eq 2 ] && grep -qF "$v is 'a b', expected one folder without spaces" "$D/out" && ok "no spaces in $v" || bad "no spaces in $v" "$(cat "$D/out")"
done
for args in "BUILD=|BUILD is empty, expected a folder" "PREFIX=inst|PREFIX is 'inst', expected an absolute path"; do
  make -n "${args%|*}" >"$D/out" 2>&1; rc=$?
  [ $rc -eq 2 ] && grep -qF "${args#*|}" "$D/out" && ok "make ${args%|*}" || bad "make ${args%|*}" "$(head -3 "$D/out")"
done
rm -r "$p/share/kvdim"
if target uninstall; then ok "uninstall of nothing"; else bad "uninstall of nothing" "$(cat "$D/out")"; fi
