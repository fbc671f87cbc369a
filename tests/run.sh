#!/usr/bin/env bash
# Runs all tests: unit tests, scenarios with the first flavour of servers and again with each further one, scenarios on a
# cluster.
#
# Scenarios start many servers at once and wait with deadlines; on a machine that is busy with something else a deadline
# may pass although nothing is wrong. A scenario that fails is therefore run again, alone, at most twice. It must pass
# then, and it is named at the end, so that one that needs this often is seen.
set -uo pipefail
cd "$(dirname "$0")/.."

threads=${TEST_THREADS:-2}
hooks=(--features postroom-worker/test-hooks)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
alone=()

# The names of the scenarios that failed, from the runner's own lines.
failed() { sed -n 's/^test \([A-Za-z0-9_:]*\) \.\.\. FAILED$/\1/p' "$log" | sort -u; }

again() {
  local servers=$1 name
  for name in $(failed); do
    printf '\n== %s failed; it is run again, alone\n' "$name"
    alone+=("$servers $name")
    one "$servers" "$name" || one "$servers" "$name" || return 1
  done
}

one() { POSTROOM_TEST_SERVERS=$1 cargo test --locked --workspace "${hooks[@]}" --test scenarios -- --exact "$2"; }

first=$1
shift
cargo test --locked --workspace "${hooks[@]}" --lib --bins || exit 1
cargo test --locked --workspace "${hooks[@]}" --doc || exit 1
for servers in "$first" "$@"; do
  printf '\nScenarios with the servers of %s\n' "$servers"
  skip=()
  # What does not depend on the servers is looked at once; the long ones too, to keep the whole run short
  # (`make scenarios ONLY=crashes TEST_SERVERS=trixie` runs some of them with other servers).
  if [ "$servers" != "$first" ]; then
    for part in workspace source_files docs demo crashes late_commits fleet leases red_controls order scheduling; do
      skip+=(--skip "$part::")
    done
  fi
  POSTROOM_TEST_SERVERS=$servers cargo test --locked --workspace "${hooks[@]}" --test scenarios -- \
    --test-threads="$threads" "${skip[@]}" 2>&1 | tee "$log"
  if [ "${PIPESTATUS[0]}" != 0 ]; then
    [ -n "$(failed)" ] || exit 1
    again "$servers" || exit 1
  fi
done

if [ "${TEST_CLUSTER:-yes}" = yes ]; then
  printf '\nScenarios on a cluster\n'
  tests/cluster/run.sh || exit 1
else
  printf '\nScenarios on a cluster: left out (TEST_CLUSTER=%s)\n' "$TEST_CLUSTER"
fi

if [ "${#alone[@]}" != 0 ]; then
  printf '\nPassed only when run again, alone:\n'
  printf '  %s\n' "${alone[@]}"
fi
