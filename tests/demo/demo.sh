#!/usr/bin/env bash
# `make demo`: Postroom on Kubernetes, from nothing to a table that says what arrived.
#
#   CLUSTER=own       a cluster of one node on this machine, without a container engine (the default; root, Debian 12)
#   CLUSTER=current   the cluster that kubectl talks to. POSTROOM_IMAGE is an image that it can fetch, and
#                     DEMO_DATABASE_URL and DEMO_AMQP_URL are reached from here and from its pods
#   CLUSTER=kind      a new cluster made by kind, with PostgreSQL and RabbitMQ as containers; needs Docker
#
# The program goes on with the steps after those below.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/demo/steps.sh

programs=target/x86_64-unknown-linux-musl/release
steps_of_the_program=7
mark=.demo-cluster # what down.sh has to remove, where that is not the cluster of this machine

install() { tests/services/install.sh "${POSTROOM_TEST_SERVERS:-bookworm}" cluster; }
image() { tests/image/build.sh --package postroom-tests >/dev/null; }
run() { "$@" "$programs/postroom-demo" cluster --steps-before "$taken"; }

own() {
  total=$((4 + steps_of_the_program))
  export POSTROOM_CLUSTER=demo
  step 'Install containerd, runc, PostgreSQL and RabbitMQ (no service is started)' \
    "correct what apt-get complains about, then run 'make demo' again" install
  step 'Build the programs of Kubernetes (minutes the first time, kept for the next)' \
    "correct what go complains about, then run 'make demo' again" tests/cluster/build.sh
  step 'Build in release mode, and one image of it (minutes the first time)' \
    "correct what cargo complains about, then run 'make demo' again" image
  step 'Start a cluster of one node' "look into /var/tmp/postroom-cluster-demo/log" start_own
  local status=0
  run tests/cluster/enter.sh || status=$?
  # Ctrl-C means that nobody wants to look.
  [ "$status" != 130 ] || tests/cluster/down.sh
  exit "$status"
}

start_own() {
  tests/cluster/up.sh
  tests/cluster/load-image.sh target/image/postroom.tar >/dev/null
  tests/cluster/enter.sh kubectl get nodes
}

current() {
  total=$((1 + steps_of_the_program))
  [ -n "${POSTROOM_IMAGE:-}" ] || refuse 'POSTROOM_IMAGE is not set: name an image that the cluster can fetch'
  [ -n "${DEMO_DATABASE_URL:-}" ] && [ -n "${DEMO_AMQP_URL:-}" ] ||
    refuse 'set DEMO_DATABASE_URL and DEMO_AMQP_URL to servers that this machine and the pods reach'
  unclaimed
  programs=target/release
  step 'Build in release mode (minutes the first time)' "correct what cargo complains about, then run 'make demo' again" \
    cargo build --locked --release --package postroom-tests
  printf 'current %s\n' "$(kubectl config current-context)" >"$mark"
  run env
}

# Somebody else's installation is not ours to change.
unclaimed() {
  local command
  for command in kubectl helm; do
    command -v "$command" >/dev/null || refuse "$command is not there: install it"
  done
  kubectl get --raw /readyz >/dev/null || refuse 'kubectl reaches no cluster: see kubectl config current-context'
  if helm status postroom --namespace postroom-system >/dev/null 2>&1; then
    refuse "Postroom is installed in this cluster already: the demo would change it. Use another cluster"
  fi
  if kubectl get namespace shop >/dev/null 2>&1; then
    refuse "the namespace 'shop' exists in this cluster already: the demo would change it. Use another cluster"
  fi
}

refuse() {
  printf 'demo: %s\n' "$*" >&2
  exit 2
}

kind_with_docker() {
  total=$((3 + steps_of_the_program))
  local command
  for command in docker kind kubectl helm; do
    command -v "$command" >/dev/null || refuse "$command is not there: install it, or leave CLUSTER=kind out"
  done
  docker info >/dev/null 2>&1 || refuse 'Docker does not answer: start it, or leave CLUSTER=kind out'
  unset POSTROOM_IMAGE
  step 'Build in release mode, and one image of it (minutes the first time)' \
    "correct what cargo complains about, then run 'make demo' again" image
  printf 'kind\n' >"$mark"
  step 'Start a cluster with kind' "read what kind says; 'make demo-down' removes what there is" start_kind
  step 'Start PostgreSQL and RabbitMQ as containers' "read what docker says; 'make demo-down' removes what there is" \
    start_containers
  DEMO_DATABASE_URL="postgres://postgres:$password@$(container_address database):5432/postgres?sslmode=disable" \
    DEMO_AMQP_URL="amqp://postroom:$password@$(container_address broker):5672/%2f" run env
}

start_kind() {
  kind create cluster --name postroom-demo
  kind load image-archive target/image/postroom.tar --name postroom-demo
}

start_containers() {
  password=$(tr -dc a-z0-9 </dev/urandom | head -c 24 || true)
  docker run --detach --name postroom-demo-database --network kind --env POSTGRES_PASSWORD="$password" postgres:17
  docker run --detach --name postroom-demo-broker --network kind \
    --env RABBITMQ_DEFAULT_USER=postroom --env RABBITMQ_DEFAULT_PASS="$password" rabbitmq:4
  answers 60 docker exec postroom-demo-database pg_isready --host 127.0.0.1 --username postgres
  answers 60 docker exec postroom-demo-broker rabbitmq-diagnostics --quiet check_port_listener 5672
}

container_address() { docker inspect --format '{{.NetworkSettings.Networks.kind.IPAddress}}' "postroom-demo-$1"; }

# answers SECONDS COMMAND...
answers() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || { printf 'not in time: %s\n' "$*" >&2 && return 1; }
    sleep 0.5
  done
}

find_cargo
tests/demo/down.sh >/dev/null
case "${CLUSTER:-own}" in
  own) own ;;
  current) current ;;
  kind) kind_with_docker ;;
  *) refuse "CLUSTER is '$CLUSTER': use own, current or kind" ;;
esac
