#!/usr/bin/env bash
# The whole demo: installs what it needs, builds it, and runs it. `make demo` calls this; `make demo-down` calls it with
# `down`. The program goes on with the steps after the first two.
set -euo pipefail
cd "$(dirname "$0")/../.."

program=target/release/postroom-demo
steps=7

bold='' red='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
  bold=$'\e[1m' red=$'\e[31m' plain=$'\e[0m'
fi

# step NUMBER NAME WHAT-TO-DO-NEXT COMMAND...
step() {
  local number=$1 name=$2 next=$3 began=$SECONDS status=0
  shift 3
  printf '%s[%s/%s] %s%s\n' "$bold" "$number" "$steps" "$name" "$plain"
  "$@" || status=$?
  if [ "$status" != 0 ]; then
    printf '\n%sStep %s failed: %s%s\n  why:  see the lines above (exit code %s)\n  next: %s\n' \
      "$red" "$number" "$name" "$plain" "$status" "$next" >&2
    exit 1
  fi
  printf '      done in %s s\n' $((SECONDS - began))
}

build() { cargo build --locked --release --package postroom-worker --package postroom-tests; }

find_cargo() {
  command -v cargo >/dev/null && return
  [ -x "$HOME/.cargo/bin/cargo" ] && PATH="$HOME/.cargo/bin:$PATH" && return
  printf 'cargo is not there. Install Rust 1.90 or newer, then run this again.\n' >&2
  exit 1
}

if [ "${1:-up}" = down ]; then
  if [ ! -e .demo ]; then
    printf 'Nothing to remove: there is no .demo here.\n'
    exit 0
  fi
  if [ ! -x "$program" ]; then find_cargo && build; fi
  exec "$program" down
fi

find_cargo
step 1 'Install PostgreSQL and RabbitMQ (their services are not started)' \
  "correct what apt-get complains about, then run 'make demo' again" \
  tests/services/install.sh "${POSTROOM_TEST_SERVERS:-bookworm}"
step 2 'Build in release mode (minutes the first time)' \
  "correct what cargo complains about, then run 'make demo' again" build
exec "$program" up --steps-before 2
