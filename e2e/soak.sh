#!/usr/bin/env bash
# Runs the long forms: 100,000 rounds of each race for a workspace (as root),
# those of the bridge that take a number of rounds, then for half of the time the
# kill storm of the bridge and the whole story in turn, for the other half every
# fuzz target. Prints counts as it goes and ends with one line of totals; exits
# non-zero at the first fault.
set -euo pipefail
cd "$(dirname "$0")/.."
duration=${1:?usage: soak.sh DURATION, for example 30m}
case $duration in
  *h) seconds=$((${duration%h} * 3600)) ;;
  *m) seconds=$((${duration%m} * 60)) ;;
  *s) seconds=${duration%s} ;;
  *) echo "soak.sh: DURATION is a number with h, m or s" >&2; exit 2 ;;
esac
half=$((seconds / 2))
if [ "$(id -u)" = 0 ]; then
  PASEO_SANDBOX_SESSIONS=100 go test -race -count=1 -timeout 1h -run '^TestManySessions$' -v ./e2e | grep 'sessions:'
  PASEO_SANDBOX_RACES=100000 go test -count=1 -timeout 2h -run Racer -v ./broker/internal/workspace | grep pinned
fi
start=$SECONDS
PASEO_SANDBOX_MUTANTS=1 PASEO_SANDBOX_FIREHOSE=1m PASEO_SANDBOX_CYCLES=10000 PASEO_SANDBOX_MODEL_CHECKS=50 \
  go test -race -count=1 -timeout 1h -run 'Mutants|Firehose|AttachAndDetach|Model|DiskFull' ./bridge/internal/app > /dev/null
echo "$((SECONDS - start))s: mutants of the bridge, its model, readers and full disks, no fault"
storms=0 stories=0
while ((SECONDS - start < half)); do
  go test -race -count=1 -run 'Crash|Kill' ./bridge/internal/app > /dev/null
  storms=$((storms + 1))
  if [ "$(id -u)" = 0 ]; then
    go test -race -count=1 -run '^TestStory$' ./e2e > /dev/null
    stories=$((stories + 1))
  fi
  echo "$((SECONDS - start))s: $storms kill storms, $stories stories, no fault"
done
targets=$(grep -rhoE '^func Fuzz[A-Za-z0-9_]+' --include='*_test.go' . | wc -l)
e2e/fuzz.sh "$((half / targets + 1))s"
echo "soak: $storms kill storms, $stories stories, $targets fuzz targets, no fault in $((SECONDS - start))s"
