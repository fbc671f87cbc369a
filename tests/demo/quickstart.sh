#!/usr/bin/env bash
# `make quickstart`: the demo without a cluster. Installs what it needs, builds it, and runs it on this machine. The
# program goes on with the steps after the first two.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/demo/steps.sh
total=8

build() { cargo build --locked --release --package postroom-worker --package postroom-tests; }

find_cargo
tests/demo/down.sh >/dev/null
step 'Install PostgreSQL and RabbitMQ (their services are not started)' \
  "correct what apt-get complains about, then run 'make quickstart' again" \
  tests/services/install.sh "${POSTROOM_TEST_SERVERS:-bookworm}"
step 'Build in release mode (minutes the first time)' \
  "correct what cargo complains about, then run 'make quickstart' again" build
exec target/release/postroom-demo up --steps-before "$taken"
