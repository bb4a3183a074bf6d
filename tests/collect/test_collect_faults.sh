#!/bin/sh
# kvdim-collect killed, interrupted, out of disk, started twice: what --resume makes of it is, bit for
# bit, what an undisturbed run writes.
. tests/lib/cases.sh
collect=$B/bin/kvdim-collect
tmpfs=
trap '[ -z "$tmpfs" ] || umount "$tmpfs"; rm -rf "$D"' EXIT
said=$D/said
model=$D/tiny
"$B/tests/tool_checkpoint" -l 4 "$model" || exit 1

if ${PYTHON:-/usr/bin/python3} -c 'import h5py, numpy' 2>/dev/null; then
  same() { ${PYTHON:-/usr/bin/python3} tests/tools/tool_compare_h5.py same "$@"; }
elif command -v h5diff >/dev/null; then
  same() { # attributes differ (times, command line): datasets one by one
    [ $# -eq 2 ] || same "$3" "$4" || return 1
    for d in $(h5ls -r "$1" | awk '/ Dataset /{print $1}'); do h5diff -q "$1" "$2" "$d" || { echo "$d differs"; return 1; }; done
  }
else
  echo "skip collect_faults: neither h5py nor h5diff"; exit 0
fi
# start OPTIONS: in the background, pid in $pid; wait_state OUT waits for a state that it saved.
start() {
  : >"$D/mark"
  "$collect" $options $slow "$@" & pid=$!
}
wait_state() {
  for i in $(seq 1000); do
    [ "$1.state" -nt "$D/mark" ] && return 0
    sleep 0.01
  done
  return 1
}

options="$model --random 6000 --seq-len 40 --batch 40 --threads 1 --rope both -q"
slow="--save-every 0" # a state after every batch: there is much to be caught in
run() { out=$1; shift; "$collect" $options --moments="$out.m" -o "$out" "$@"; }

# Starts a run, waits for its first state, sends the signal; the run's status.
interrupt() { # SIGNAL OUT
  start --moments="$2.m" -o "$2"
  wait_state "$2"
  kill -$1 $pid
  wait $pid
}

check undisturbed run "$D/ref"
r=$D/ref

# ---- kill -9 again and again ----
x=$D/killed
for wait in 0 0.02 0.01 0.03 0; do
  start --moments="$x.m" -o "$x" --resume 2>>"$D/killed.log"
  wait_state "$x"
  sleep $wait
  kill -KILL $pid 2>/dev/null
  wait $pid 2>/dev/null
done
check killed_leaves_no_result test ! -e "$x"
check killed_then_resumed run "$x" --resume
check killed_goes_on says "$D/killed.log" 'going on after'
check killed_files_are_the_same same "$r" "$x" "$r.m" "$x.m"
check killed_leaves_nothing_else sh -c "! ls $x.partial $x.state $x.lock $x.m.partial $x.m.lock 2>/dev/null | grep ."
run "$x" --resume >"$said" 2>&1
check complete_has_nothing_to_do test $? -eq 0
check complete_says_so says "$said" 'is complete: nothing to do'
run "$x" --resume --label other >"$said" 2>&1
check complete_of_other_options says "$said" "label was 'random', is now 'other'"

# ---- kill -9, moments alone ----
x=$D/sums
alone="$collect $options --moments"
check sums_undisturbed $alone -o "$D/sums.ref"
for wait in 0 0.02 0.01; do
  start --moments -o "$x" --resume 2>/dev/null
  wait_state "$x"
  sleep $wait
  kill -KILL $pid 2>/dev/null
  wait $pid 2>/dev/null
done
check sums_resumed $alone -o "$x" --resume
check sums_are_the_same same "$D/sums.ref" "$x"

# ---- SIGTERM, SIGINT and SIGHUP; an earlier result stays ----
signals="TERM INT HUP"
sh -c 'kill -HUP $$; exit 0' 2>/dev/null && { signals="TERM INT"; echo "skip SIGHUP: this shell ignores it"; }
for signal in $signals; do
  x=$D/$signal
  cp "$D/sums.ref" "$x"
  interrupt $signal "$x" >"$said" 2>&1
  check ${signal}_gets_status_1 test $? -eq 1
  check ${signal}_says_interrupted says "$said" 'kvdim-collect: interrupted'
  check ${signal}_says_how_to_go_on says "$said" 'what was recorded is kept; to continue: the same command with --resume'
  check ${signal}_keeps_the_old_result cmp "$D/sums.ref" "$x"
  check ${signal}_keeps_what_was_done test -s "$x.state" -a -s "$x.partial"
  run "$x" --resume --batch 32 >"$said" 2>&1
  check ${signal}_other_options_are_refused says "$said" "cannot be resumed: batch was '40', is now '32'"
  run "$x" --resume >"$said" 2>&1
  check ${signal}_resumed says "$said" 'going on after'
  check ${signal}_files_are_the_same same "$r" "$x" "$r.m" "$x.m"
done

# ---- a model file becomes shorter while it is read ----
x=$D/nohup
(trap '' HUP; exec "$collect" $options $slow --moments="$x.m" -o "$x") 2>"$said" & pid=$!
: >"$D/mark"
wait_state "$x"
kill -HUP $pid
wait $pid
check nohup_runs_to_its_end test $? -eq 0
check nohup_files_are_the_same same "$r" "$x" "$r.m" "$x.m"

x=$D/shrunk
cp -r "$model" "$D/short"
weights=$D/short/model.safetensors
short="--random 6000 --seq-len 40 --batch 40 --threads 2 --rope both -q"
"$collect" "$D/short" $short $slow --moments="$x.m" -o "$x" 2>"$said" & pid=$!
: >"$D/mark"
wait_state "$x"
kill -STOP $pid
cp "$weights" "$D/weights"
truncate -s 8192 "$weights"
kill -CONT $pid
wait $pid
check shrunk_gets_status_1 test $? -eq 1
check shrunk_gets_one_line test "$(wc -l <"$said")" -eq 1
check shrunk_is_named says "$said" "kvdim-collect: '$weights' can no longer be read"
cp "$D/weights" "$weights"
"$collect" "$D/short" $short --moments="$x.m" -o "$x" --resume >"$said" 2>&1
check shrunk_resumed says "$said" 'going on after'
"$collect" "$D/short" $short --moments="$D/whole.m" -o "$D/whole"
check shrunk_files_are_the_same same "$D/whole" "$x" "$D/whole.m" "$x.m"

# ---- the output's folder is removed during the run ----
mkdir "$D/gone"
x=$D/gone/out
start --moments="$x.m" -o "$x" 2>"$said"
wait_state "$x"
kill -STOP $pid
rm -r "$D/gone"
kill -CONT $pid
wait $pid
check gone_gets_status_1 test $? -eq 1
check gone_says_what_is_lost says "$said" "what was recorded is lost: unfinished files of '$x' were removed"
check gone_promises_nothing sh -c "! grep -q 'to continue' '$said'"

# ---- two programs, one file; an interrupted run replaced ----
x=$D/twice
start --moments="$x.m" -o "$x" 2>/dev/null
wait_state "$x"
kill -STOP $pid
run "$x" >"$said" 2>&1
check second_program_gets_status_1 test $? -eq 1
check second_program_gets_one_line test "$(wc -l <"$said")" -eq 1
check second_program_is_told_why says "$said" 'is being written by another program'
run "$x" --resume >"$said" 2>&1
check second_program_may_not_resume says "$said" 'is being written by another program'
kill -KILL $pid 2>/dev/null; wait $pid 2>/dev/null
run "$x" >"$said" 2>&1
check replaced_says_so says "$said" 'replacing what an interrupted run left'
check replaced_dump_is_the_same same "$r" "$x"
run "$D/fresh" --resume >"$said" 2>&1
check nothing_to_resume_says_so says "$said" 'nothing to resume'
check nothing_to_resume_starts_from_scratch same "$r" "$D/fresh"

# ---- what is on disk is wrong ----
x=$D/torn
interrupt TERM "$x" >/dev/null 2>&1
cp "$x.state" "$D/state"
truncate -s -1 "$x.state"
run "$x" --resume >"$said" 2>&1
check damaged_state_is_refused says "$said" 'is damaged'
check damaged_state_gets_one_line test "$(wc -l <"$said")" -eq 1
check damaged_state_costs_nothing test -s "$x.partial"
cp "$D/state" "$x.state"
mv "$x.partial" "$D/partial"
run "$x" --resume >"$said" 2>&1
check lost_dump_starts_from_scratch says "$said" 'starting from scratch'
check lost_dump_is_the_same same "$r" "$x"

# ---- names that a run makes up are taken: nothing else is written to, no FIFO is waited for ----
x=$D/taken
echo precious >"$D/victim"
refused() { # KIND NAME WORDS...: status 1 and one line that names what is there
  timeout 60 "$collect" $options --moments="$x.m" --save-every 0 -o "$x" >"$said" 2>&1
  [ $? -eq 1 ] && [ "$(wc -l <"$said")" -eq 1 ] && says "$said" "cannot write '$2': it $3; remove it first" &&
    [ "$(cat "$D/victim")" = precious ] && [ ! -e "$x" ] && [ ! -e "$x.m" ]
}
for ending in .partial .lock .state .state.new .m.partial .m.lock; do
  ln -s victim "$x$ending"
  check "a_link_at_$ending" refused link "$x$ending" 'is a symbolic link'
  rm "$x$ending"
  ln "$D/victim" "$x$ending"
  check "a_hard_link_at_$ending" refused hard "$x$ending" 'has other hard links'
  rm "$x$ending"
  mkfifo "$x$ending"
  check "a_fifo_at_$ending" refused fifo "$x$ending" 'is a FIFO'
  rm "$x$ending"
done
check taken_names_leave_nothing sh -c "! ls $x* 2>/dev/null | grep ."

# ---- outputs of one run that collide: refused before anything is written ----
apart() { # WORDS OPTIONS...: a usage error of one line with both names
  words=$1; shift
  "$collect" $options "$@" >"$said" 2>&1
  [ $? -eq 2 ] && says "$said" "$words" && ! ls "$x"* 2>/dev/null | grep .
}
x=$D/apart
check moments_at_the_partial_dump apart "-o '$x' and --moments '$x.partial' would both write '$x.partial'" --moments="$x.partial" -o "$x"
check moments_at_the_state apart "-o '$x' and --moments '$x.state' would both write '$x.state'" --moments="$x.state" -o "$x"
check moments_at_the_new_state apart "would both write '$x.state.new'" --moments="$x.state.new" -o "$x"
check moments_at_the_lock apart "would both write '$x.lock'" --moments="$x.lock" -o "$x"
check dump_at_the_partial_moments apart "would both write '$x.m.partial'" --moments="$x.m" -o "$x.m.partial"
check moments_by_another_name apart "--moments and -o name the same file '$D/./apart'" --moments="$D/./apart" -o "$x"
check attention_at_the_state apart "-o '$x' and --attention '$x.state' would both write" --attention="$x.state" -o "$x"
"$collect" $options --moments="$x.h5" --snapshots 80 -o "$D/./apart.80.h5" >"$said" 2>&1
check a_snapshot_by_another_name test $? -eq 1
check a_snapshot_says_so says "$said" "--snapshots 80 and -o name the same file '$x.80.h5'"
# ---- bits of what was kept are flipped ----
# A flip is refused in one line that says what to do, and costs nothing, or is in a place that no value comes from.
x=$D/flipped
tokens_done() { head -n 5 "$x.state" 2>/dev/null | sed -n 's/^tokens=//p'; }
start --moments="$x.m" -o "$x" 2>/dev/null
wait_state "$x"
while [ "$(tokens_done)" -lt 4000 ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done
kill -KILL $pid 2>/dev/null; wait $pid 2>/dev/null
check killed_past_the_middle test "$(tokens_done)" -lt 6000
mkdir "$D/kept"; cp "$x.state" "$x.partial" "$D/kept"
resumes() { run "$x" --resume >"$said" 2>&1 && grep -q 'going on after' "$said" && same "$r" "$x" "$r.m" "$x.m" >/dev/null; }
flips() { # SUFFIX SEED...: flips a bit of OUT.SUFFIX, resumes; after a refusal flips it back and resumes
  file=$x.$1; shift
  refused=0 unharmed=0 wrong=
  for seed in "$@"; do
    cp "$D/kept/"* "$D"
    place=$("$B/tests/tool_flip" "$file" $seed)
    if resumes; then unharmed=$((unharmed + 1))
    elif [ "$(wc -l <"$said")" -eq 1 ] && grep -q "cannot resume: .* without --resume" "$said" && [ ! -e "$x" ] &&
         "$B/tests/tool_flip" "$file" $seed >"$log" && resumes; then refused=$((refused + 1))
    else wrong="$wrong seed $seed, $place: $(head -1 "$said");"
    fi
    rm -f "$x" "$x.m"
  done
  echo "$refused refused, $unharmed unharmed$wrong"
  [ -z "$wrong" ] && [ $refused -gt 0 ]
}
check flipped_state flips state 1 2 3 4 5 6
check flipped_dump flips partial 1 2 3 4 5 6 7 8 9 10

# ---- stdout and disk full ----
"$collect" $options -o "$D/full" >/dev/full 2>/dev/null # -q prints nothing: this must work
check quiet_ignores_full_stdout test $? -eq 0
"$collect" $model --random 64 -o "$D/full" >/dev/full 2>"$log"
check full_stdout_is_an_error test $? -eq 1
mkdir "$D/disk"
if mount -t tmpfs -o size=4m tmpfs "$D/disk" 2>/dev/null; then
  tmpfs=$D/disk
  x=$D/disk/out
  dump=$(wc -c <"$r")
  mount -o remount,size=$((dump / 2)) "$D/disk"
  run "$x" >"$said" 2>&1
  check full_disk_gets_status_1 test $? -eq 1
  check full_disk_gets_one_line test "$(wc -l <"$said")" -eq 1
  check full_disk_is_named says "$said" 'cannot reserve'
  check full_disk_leaves_nothing test -z "$(ls "$D/disk")"
  mount -o remount,size=$((dump * 2)) "$D/disk"
  start --moments="$x.m" -o "$x" >"$D/log2" 2>&1
  wait_state "$x"
  kill -STOP $pid
  cat /dev/zero >"$D/disk/ballast" 2>/dev/null
  kill -CONT $pid
  wait $pid
  check filled_disk_gets_status_1 test $? -eq 1
  check filled_disk_is_named says "$D/log2" 'No space left on device'
  check filled_disk_keeps_what_was_done test -s "$x.state" -a -s "$x.partial"
  rm "$D/disk/ballast"
  run "$x" --resume >"$said" 2>&1
  check filled_disk_resumed says "$said" 'going on after'
  check filled_disk_files_are_the_same same "$r" "$x" "$r.m" "$x.m"
else
  echo "skip full_disk: mounting a tmpfs is not permitted"
fi
