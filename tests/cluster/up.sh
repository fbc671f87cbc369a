#!/usr/bin/env bash
# Starts a cluster of one node from nothing and waits until the node is Ready; what was there under its name goes first.
#
#   up.sh             everything
#   up.sh control     the API, controllers and scheduler only: no pod will run
set -euo pipefail
. "$(dirname "$0")/settings.sh"
parts=${1:-all}

main() {
  [ "$(id -u)" = 0 ] || fail 'a cluster needs root'
  "$here/build.sh"
  "$here/down.sh"
  prepare
  start_first_process
  reached 60 kubectl get --raw /readyz
  reached 60 kubectl get serviceaccount default
  [ "$parts" = all ] || return 0
  reached 30 ctr version
  "$here/load-image.sh" "$cache/pause.tar" >/dev/null
  reached 90 kubectl wait --for=condition=Ready node/node1 --timeout=5s
  reached 30 getent hosts kubernetes.default
}

fail() {
  printf 'up: %s\n' "$*" >&2
  exit 1
}

prepare() {
  mkdir -p "$state"/{kubelet,containerd,log,etcd,cni-leases}
  chmod 711 "$state"
  "$here/certificates.sh"
  cp -r "$here/etc/." "$state"
  sed -i "s|GROUP|$group|" "$state/kubelet.yaml"
  for hierarchy in $(hierarchies); do
    mkdir -p "$hierarchy/$group"
    # With v1 a new group has no processors, and no process could enter it.
    if [ -f "$hierarchy/cpuset.cpus" ]; then
      cat "$hierarchy/cpuset.cpus" >"$hierarchy/$group/cpuset.cpus"
      cat "$hierarchy/cpuset.mems" >"$hierarchy/$group/cpuset.mems"
    fi
  done
}

# Everything else of the cluster descends from it.
start_first_process() {
  local starter first=
  setsid unshare --fork --pid --mount-proc --mount --propagation private --net --uts \
    "$here/node.sh" "$parts" >"$state/log/node.log" 2>&1 </dev/null &
  starter=$!
  while [ -z "$first" ]; do
    [ -d "/proc/$starter" ] || fail "the first process ended: $(cat "$state/log/node.log")"
    read -r first _ <"/proc/$starter/task/$starter/children" || sleep 0.05
  done
  printf '%s' "$first" >"$state/pid"
  disown
}

# reached SECONDS COMMAND...: repeats it, inside, until it succeeds.
reached() {
  local end=$((SECONDS + $1))
  shift
  until "$here/enter.sh" "$@" >"$state/log/wait.log" 2>&1; do
    [ $SECONDS -lt $end ] || fail "not in time: $*. $(cat "$state/log/wait.log") Logs of all parts: $state/log"
    sleep 0.2
  done
}

main
