#!/bin/sh
# clang-format, cppcheck and the wording of comments and documents (scripts/prose.py); prints "ok ..." / "not ok ..." / "skip ...".
set -u
status=0
sources=$(git ls-files 'src/*.c' 'src/*.h' 'src/*.cu' 'src/*.cuh' 'tests/*.c' 'tests/*.h')
if command -v clang-format >/dev/null 2>&1; then
  if clang-format --dry-run --Werror $sources; then echo 'ok clang-format'; else echo 'not ok clang-format'; status=1; fi
else
  echo 'skip clang-format: not installed'
fi
if command -v cppcheck >/dev/null 2>&1; then
  if cppcheck --quiet --std=c11 --language=c --enable=warning,performance,portability --inline-suppr \
       --suppress=missingIncludeSystem -U__CUDACC__ --error-exitcode=1 -j 2 -Isrc -Iinclude -Itests/lib $(echo "$sources" | tr ' ' '\n' | grep '\.c$'); then
    echo 'ok cppcheck'
  else
    echo 'not ok cppcheck'; status=1
  fi
else
  echo 'skip cppcheck: not installed'
fi
if python3 scripts/prose.py >/tmp/kvdim-prose.$$ 2>&1; then echo 'ok prose'; else
  echo "not ok prose: $(tail -n 1 /tmp/kvdim-prose.$$); see python3 scripts/prose.py"; status=1
fi
rm -f /tmp/kvdim-prose.$$
exit $status
