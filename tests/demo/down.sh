#!/usr/bin/env bash
# `make demo-down`: ends and removes whatever `make demo` or `make quickstart` left running.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/demo/steps.sh
export POSTROOM_CLUSTER=demo
removed=

own_cluster() {
  [ -d /var/tmp/postroom-cluster-demo ] || return 0
  tests/cluster/down.sh
  removed+='the cluster of this machine, '
}

other_cluster() {
  local kind context
  [ -f .demo-cluster ] || return 0
  read -r kind context <.demo-cluster
  case $kind in
    kind)
      kind delete cluster --name postroom-demo
      docker rm --force --volumes postroom-demo-database postroom-demo-broker
      ;;
    current)
      kubectl --context "$context" delete namespace shop --ignore-not-found
      helm --kube-context "$context" uninstall postroom --namespace postroom-system --ignore-not-found --wait
      kubectl --context "$context" delete namespace postroom-system --ignore-not-found
      kubectl --context "$context" delete customresourcedefinition inboxoutboxes.postroom.dev --ignore-not-found
      ;;
  esac
  rm .demo-cluster
  removed+='what was in the other cluster, '
}

# Servers and workers that are processes of this machine, and the folder. The program knows which are its own.
processes() {
  local program
  [ -e .demo ] || return 0
  for program in target/release/postroom-demo target/x86_64-unknown-linux-musl/release/postroom-demo; do
    if [ -x "$program" ]; then break; fi
  done
  if [ ! -x "$program" ]; then
    find_cargo
    program=target/release/postroom-demo
    cargo build --locked --release --package postroom-worker --package postroom-tests
  fi
  "$program" down >/dev/null
  removed+='servers, workers and the folder .demo, '
}

own_cluster
other_cluster
processes
if [ -n "$removed" ]; then
  printf 'Removed: %s.\n' "${removed%, }"
else
  printf 'Nothing to remove: no demo is running.\n'
fi
