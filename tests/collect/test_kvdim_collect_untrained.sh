#!/bin/sh
# kvdim-collect --untrained: equal seeds give equal moments, other seeds and the trained weights give others.
. tests/lib/cases.sh
run() { "$B/bin/kvdim-collect" data/models/kvdim-6m --text data/texts/articles.txt --tokens 64 --seq-len 64 --moments -q "$@" && "$B/bin/kvdim-spectrum" "$D/m.h5" --pair k --no-bases -q -o "$D/s.h5" && h5dump -d /k/sigma -y "$D/s.h5" | sed '1d; /ATTRIBUTE/,$d' | md5sum; }
a=$(run --untrained 1 -o "$D/m.h5"); rm -f "$D"/*.h5
b=$(run --untrained 1 -o "$D/m.h5"); rm -f "$D"/*.h5
c=$(run --untrained 2 -o "$D/m.h5"); rm -f "$D"/*.h5
d=$(run -o "$D/m.h5")
if [ -n "$a" ] && [ "$a" = "$b" ] && [ "$a" != "$c" ] && [ "$a" != "$d" ]
then ok "untrained weights follow the seed"; else not_ok "untrained weights follow the seed" "$a" "$b" "$c" "$d"; fi
