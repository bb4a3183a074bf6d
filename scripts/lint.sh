#!/bin/sh
# clang-format and cppcheck over the sources; prints "ok ..." / "not ok ..." / "skip ...".
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
       --suppress=missingIncludeSystem --error-exitcode=1 -j 2 -Isrc $(echo "$sources" | tr ' ' '\n' | grep '\.c$'); then
    echo 'ok cppcheck'
  else
    echo 'not ok cppcheck'; status=1
  fi
else
  echo 'skip cppcheck: not installed'
fi
exit $status
