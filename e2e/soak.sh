#!/usr/bin/env bash
# Runs the long forms of the tests for DURATION in all, and with root those that
# need it: mutants, races for a workspace, the bridge's model, its readers and
# full disks, the storms of bridge and system, the whole story, and every fuzz
# target. Each gets a share of what is left, and ends what it has begun. Prints
# counts as it goes, the system's storm every ten seconds, and ends with one line
# of totals. At the first fault it prints the end of what was said, and exits 1.
# Ctrl-C ends it at once with 130: everything runs in a pid and a mount namespace
# of its own, and in one temporary folder.
set -euo pipefail
cd "$(dirname "$0")/.."
duration=${1:?usage: soak.sh DURATION, for example 30m}
case $duration in
  *h) seconds=$((${duration%h} * 3600)) ;;
  *m) seconds=$((${duration%m} * 60)) ;;
  *s) seconds=${duration%s} ;;
  *) echo "soak.sh: DURATION is a number with h, m or s" >&2; exit 2 ;;
esac
root=$([ "$(id -u)" = 0 ] && echo yes || echo no)
dir=$(mktemp -d)
chmod 755 "$dir" # daemons are other users
export TMPDIR=$dir
child=
declare -A did=()
storm=

# Removes what a test that was killed leaves: cgroups, which are named after the
# folder that their system ran in, and the folder.
clean() {
  trap - EXIT
  local run group found
  for run in "$dir"/*/run "$dir"/*/*/run; do
    group=paseo-sandbox-$(printf %s "$run" | sha256sum | head -c 8)
    for found in /sys/fs/cgroup/"$group" /sys/fs/cgroup/*/"$group"; do
      [ ! -d "$found" ] || find "$found" -depth -type d -exec rmdir {} +
    done
  done
  rm -rf "$dir"
}

abort() {
  if [ -n "$child" ]; then
    # The first process of the namespace takes all others along.
    pkill -KILL -P "$child" || true
    kill -KILL "$child" || true
    wait "$child" || true
  fi 2> "$dir/abort"
  clean
  exit "$1"
}
trap 'abort 130' INT
trap 'abort 143' TERM
trap clean EXIT

# unit NAME COMMAND...: runs one piece of a stage, and shows the storm's lines.
unit() {
  local name=$1 status=0
  shift
  if [ $root = yes ]; then
    set -- unshare --mount --pid --fork --kill-child --mount-proc bash -c '"$@" & wait $!' soak "$@"
  fi
  "$@" < /dev/null > "$dir/log" 2>&1 &
  child=$!
  tail -n +1 -f --pid="$child" "$dir/log" | grep --line-buffered '^storm:' &
  local shown=$!
  wait "$child" || status=$?
  child=
  wait "$shown" || true # there was nothing to show
  if [ "$status" != 0 ]; then
    tail -n 200 "$dir/log"
    echo "soak: $name failed after ${SECONDS}s"
    exit 1
  fi
  did[$name]=$((${did[$name]:-0} + 1))
}

# share WEIGHT REST: gives a stage its share of what is left and sets until.
share() { until=$((SECONDS + (seconds - SECONDS) * $1 / $2)); }

# stage NAME WEIGHT REST COMMAND...: repeats a unit for its share.
stage() {
  local name=$1
  share "$2" "$3"
  shift 3
  while ((SECONDS < until)); do
    unit "$name" "$@"
    echo "soak: ${SECONDS}s: $name ${did[$name]}, no fault"
  done
}

app=(go test -race -count=1 -timeout 2h ./bridge/internal/app)
stage "mutants of the bridge" 2 20 env PASEO_SANDBOX_MUTANTS=1 "${app[@]}" -run Mutants
if [ $root = yes ]; then
  stage "thousand races" 1 18 env PASEO_SANDBOX_RACES=1000 go test -count=1 -timeout 2h -run Racer ./broker/internal/workspace
fi
stage "models and readers" 3 17 env PASEO_SANDBOX_FIREHOSE=20s PASEO_SANDBOX_CYCLES=2000 PASEO_SANDBOX_MODEL_CHECKS=50 \
  "${app[@]}" -run 'Firehose|AttachAndDetach|Model|DiskFull'
stage "storms of the bridge" 3 14 "${app[@]}" -run Kill
if [ $root = yes ]; then
  share 4 11
  if ((until > SECONDS)); then
    unit "storm of the system" env PASEO_SANDBOX_STORM=$((until - SECONDS))s \
      go test -race -count=1 -timeout 0 -v -run '^TestStorm$' ./e2e
    storm="; $(grep '^storm:' "$dir/log" | tail -n 1)"
  fi
  stage "hundreds of sessions" 1 8 env PASEO_SANDBOX_SESSIONS=100 go test -race -count=1 -timeout 1h -run '^TestManySessions$' ./e2e
  stage "stories" 2 7 go test -race -count=1 -run '^TestStory$' ./e2e
fi
targets=$(grep -rhoE '^func Fuzz[A-Za-z0-9_]+' --include='*_test.go' . | wc -l)
if ((seconds > SECONDS)); then
  unit "fuzz targets" e2e/fuzz.sh "$(((seconds - SECONDS) / targets + 1))s"
  did["fuzz targets"]=$targets
fi
totals=
for name in "${!did[@]}"; do totals+="$name ${did[$name]}, "; done
echo "soak: ${totals}no fault in ${SECONDS}s$storm"
