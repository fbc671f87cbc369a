#!/usr/bin/env bash
# Ends the cluster and removes all of it. It lives below one process, the first of a process namespace of its own: with
# that the kernel ends everything in it, and its mounts and network go too.
set -euo pipefail
. "$(dirname "$0")/settings.sh"

pid=$(cat "$state/pid" 2>/dev/null || true)
if [ -n "$pid" ] && grep -qzF cluster/node.sh "/proc/$pid/cmdline" 2>/dev/null; then
  kill -9 "$pid"
  while [ -d "/proc/$pid" ]; do sleep 0.05; done
fi
for hierarchy in $(hierarchies); do
  # A group can be removed a moment after its last process.
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    [ -d "$hierarchy/$group" ] || break
    find "$hierarchy/$group" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.2
  done
done
rm -rf --one-file-system "$state"
