#!/bin/sh
# The figure of README is the one that the committed results give.
. tests/lib/cases.sh
if ! "$PYTHON" -c 'import h5py' 2>/dev/null; then
  echo "skip the figure of README: $PYTHON has no h5py"
  exit 0
fi
if "$PYTHON" scripts/readme_figure.py "$D/now.svg" results/kvdim-25m/methods-sweep/*-on-wikipedia-t4096.h5 2>"$D/log" &&
  cmp "$D/now.svg" docs/figures/quality-by-bytes.svg >>"$D/log" 2>&1
then ok "the figure of README shows the committed results"
else not_ok "the figure of README shows the committed results" "run make readme-figure" "$(cat "$D/log")"; fi
