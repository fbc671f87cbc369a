#!/usr/bin/env bash
# run.sh [PART-OF-A-NAME...]: runs the scenarios on a cluster of their own, which it starts and ends. The image must be
# there: tests/image/build.sh makes it. KEEP=1 leaves the cluster running, and uses one that is running.
#
# A scenario that fails is run again, alone, at most twice, as tests/run.sh does; it is named at the end.
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/cluster/settings.sh

threads=${TEST_THREADS:-2}
export POSTROOM_FIGURES=$PWD/target/cluster-figures.txt
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$here/enter.sh
log=$(mktemp)
alone=()

main() {
  local began=$SECONDS
  : >"$POSTROOM_FIGURES"
  trap finish EXIT
  start || exit 1
  printf 'The cluster was ready after %s s\n' $((SECONDS - began))
  scenarios --test-threads="$threads" "$@" 2>&1 | tee "$log"
  if [ "${PIPESTATUS[0]}" != 0 ]; then
    [ -n "$(failed)" ] || exit 1
    again || exit 1
  fi
}

start() {
  if [ -n "${KEEP:-}" ] && "$here/enter.sh" kubectl get --raw /readyz >/dev/null 2>&1; then
    :
  else
    "$here/up.sh" || return 1
  fi
  "$here/load-image.sh" target/image/postroom.tar >/dev/null
}

scenarios() {
  cargo test --locked --workspace --features postroom-worker/test-hooks --test cluster -- "$@"
}

failed() { sed -n 's/^test \([A-Za-z0-9_:]*\) \.\.\. FAILED$/\1/p' "$log" | sort -u; }

again() {
  local name
  for name in $(failed); do
    printf '\n== %s failed; it is run again, alone\n' "$name"
    alone+=("$name")
    scenarios --exact "$name" || scenarios --exact "$name" || return 1
  done
}

finish() {
  if [ -s "$POSTROOM_FIGURES" ]; then
    printf '\nMeasured on the cluster:\n'
    sed 's/^/  /' "$POSTROOM_FIGURES"
  fi
  if [ "${#alone[@]}" != 0 ]; then
    printf '\nPassed only when run again, alone:\n'
    printf '  %s\n' "${alone[@]}"
  fi
  [ -n "${KEEP:-}" ] || "$here/down.sh"
  rm -f "$log"
}

main "$@"
