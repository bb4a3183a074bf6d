#!/bin/sh
# kvdim-jct when a GPU is lost in the middle of a sweep: one line that says so, exit status 1, in good time; what was finished is in OUT.h5.rows.
# The loss is real, of the program's own CUDA context (tests/tools/lose_gpu.c).
. tests/lib/cases.sh
jct="$B/bin/kvdim-jct"
lose=$B/tests/lose_gpu.so
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ "$gpus" -gt 0 ] || { echo 'skip a lost GPU: no GPU'; exit 0; }
[ -e "$lose" ] || { echo "skip a lost GPU: no $lose"; exit 0; }

# lost NAME GPU OPTIONS...
lost() {
  name=$1 gpu=$2 out="$D/out.h5"; shift 2
  rm -f "$out" "$out.rows"
  run="$jct data/models/kvdim-6m --device cuda --input-len 64 --output-len 16,512 --batch 4 --repeats 51 $*"
  start=$(date +%s)
  KVD_LOSE_GPU=$gpu KVD_LOSE_WHEN=$out.rows KVD_LOSE_AFTER=0.3 KVD_LOSE_PROGRAM=kvdim-jct LD_PRELOAD=$lose \
    timeout 120 $run -q -o "$out" >"$D/log" 2>&1
  status=$?
  echo "# status $status after $(($(date +%s) - start)) s: $(cat "$D/log")"
  if [ $status -eq 1 ] && [ "$(wc -l <"$D/log")" -eq 1 ] && grep -q "1 of 2 points are in '$out.rows'" "$D/log" && [ ! -e "$out" ]; then
    echo "ok $name: one line, status 1"
  else
    echo "not ok $name: one line, status 1"
  fi
  if "$PYTHON" -c 'import h5py' 2>/dev/null; then
    "$PYTHON" -c 'import h5py, sys; f = h5py.File(sys.argv[1]); assert f.attrs["complete"] and f.attrs["points_done"] == 1 and len(f["rows/jct_s"]) == 1' "$out.rows" &&
      echo "ok $name: the finished point is there" || echo "not ok $name: the finished point is there"
  else
    echo "skip $name: the finished point: no h5py for $PYTHON"
  fi
}

lost 'graphs' 0
lost 'no graphs' 0 --graphs off
if [ "$gpus" -gt 1 ]; then
  for gpu in 0 1; do
    lost "GPU $gpu of two, graphs" $gpu --gpus 2
    lost "GPU $gpu of two, no graphs" $gpu --gpus 2 --graphs off
    lost "GPU $gpu of two, prompts by tokens" $gpu --gpus 2 --parallel sequence --input-len 64,1000 --output-len 1 --batch 1 --repeats 1001
  done
else
  echo 'skip one of two GPUs lost: there is one'
fi
CUDA_VISIBLE_DEVICES=0 "$jct" data/models/kvdim-6m --device cuda --gpus 2 --input-len 8 --output-len 2 -q -o "$D/m.h5" >"$D/log" 2>&1
[ $? -eq 1 ] && grep -q -- '--gpus 2: this machine has 1' "$D/log" && echo 'ok a GPU that is not there' || { echo 'not ok a GPU that is not there'; sed 's/^/# /' "$D/log"; }
