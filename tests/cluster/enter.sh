#!/usr/bin/env bash
# enter.sh COMMAND...: runs a command where the cluster is, in its network, process and mount namespaces. kubectl and
# helm are set up there, and the addresses of pods and services answer; nothing there reaches the outside.
set -euo pipefail
. "$(dirname "$0")/settings.sh"
if ! pid=$(cat "$state/pid" 2>/dev/null) || [ ! -d "/proc/$pid" ]; then
  printf "enter: there is no cluster '%s': start it with tests/cluster/up.sh\n" "$cluster" >&2
  exit 3
fi
# Servers that are started there for the cluster listen where pods reach them.
export POSTROOM_TEST_ADDRESS=$address
exec nsenter --target "$pid" --mount --net --uts --pid -- env -C "$PWD" "$@"
