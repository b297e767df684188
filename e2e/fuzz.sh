#!/usr/bin/env bash
# Runs every fuzz target of the tree for the given time each, one after the
# other, and prints what each did. Exits non-zero at the first failure, which
# go test has then written to the target's corpus. Minimizing is kept short: a
# target whose coverage varies would do little else.
set -euo pipefail
cd "$(dirname "$0")/.."
fuzztime=${1:?usage: fuzz.sh TIME, for example 1m}
grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n1 dirname | sort -u | while read -r dir; do
  grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go | cut -d' ' -f2 | while read -r target; do
    echo "== $dir $target"
    go test -run='^$' -fuzz="^$target\$" -fuzztime="$fuzztime" -fuzzminimizetime=20x "$dir" < /dev/null | tail -n 3
  done
done
