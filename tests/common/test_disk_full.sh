#!/bin/sh
# A full disk, a file size limit and a kill each end with one line or a file that can be continued.
B=${BUILD:-build}
dir=$(mktemp -d)
mounted=0
cleanup() {
  [ "$mounted" = 0 ] || umount "$dir/disk"
  rm -rf "$dir"
}
trap cleanup EXIT
tool=$(cd "$B/tests" && pwd)/tool_h5

# NAME FOLDER COMMAND...: must end with status 1, one line that says WHY, and leave no file.
fails_with() {
  name=$1 why=$2 folder=$3
  shift 3
  timeout 60 "$@" >"$dir/out" 2>"$dir/err"
  status=$?
  if [ "$status" = 1 ] && [ "$(wc -l <"$dir/err")" = 1 ] && grep -q "$why" "$dir/err" && [ -z "$(ls "$folder")" ]; then
    echo "ok $name"
  else
    echo "status $status, left: $(ls "$folder")"
    cat "$dir/err"
    echo "not ok $name"
  fi
}

# -- file size limit (works for every user)
mkdir "$dir/small"
for blocks in 8 100 1000; do
  fails_with "file size limit of $blocks blocks" 'File too large' "$dir/small" \
    sh -c "ulimit -f $blocks; exec '$tool' write '$dir/small/x.h5' 600"
done
fails_with 'file size limit while reserving' 'File too large' "$dir/small" \
  sh -c "ulimit -f 1000; exec '$tool' reserve '$dir/small/x.h5' 8"

# -- a full disk (needs the right to mount)
mkdir "$dir/disk"
if mount -t tmpfs -o size=1m none "$dir/disk" 2>/dev/null; then
  mounted=1
  fails_with 'disk full while writing' 'No space left on device' "$dir/disk" "$tool" write "$dir/disk/x.h5" 600
  fails_with 'disk too small is known when space is reserved' 'bytes are needed' "$dir/disk" \
    "$tool" reserve "$dir/disk/x.h5" 20
  if "$tool" write "$dir/disk/x.h5" 8 && "$tool" read "$dir/disk/x.h5" 8; then
    cp "$dir/disk/x.h5" "$dir/before.h5"
    timeout 60 "$tool" write "$dir/disk/x.h5" 600 2>/dev/null
    if cmp -s "$dir/disk/x.h5" "$dir/before.h5"; then
      echo 'ok the old file stays when the disk is full'
    else
      echo 'not ok the old file stays when the disk is full'
    fi
  else
    echo 'not ok a small file fits'
  fi
else
  echo 'skip disk full: no right to mount a tmpfs'
fi

# -- kill -9 in the middle, then resume
"$tool" reserve "$dir/k.h5" 8 30 &
pid=$!
i=0
while [ $i -lt 100 ]; do
  i=$((i + 1))
  [ -s "$dir/k.h5.partial" ] && [ "$(wc -c <"$dir/k.h5.partial")" -gt 8388608 ] && break
  sleep 0.1
done
sleep 0.5
kill -9 $pid
wait $pid 2>/dev/null
if [ ! -e "$dir/k.h5" ] && "$tool" resume "$dir/k.h5" >"$dir/out" 2>&1 && grep -q '^5 rows were there' "$dir/out" &&
  [ ! -e "$dir/k.h5.partial" ]; then
  echo 'ok a killed run is continued'
else
  cat "$dir/out"
  ls -l "$dir"
  echo 'not ok a killed run is continued'
fi
