#!/usr/bin/env bash
# Installs the servers and tools that the tests and the demo need. Run as root on Debian 12; Rust must be there already.
#
#   install.sh                     the machine's own servers (PostgreSQL 15, RabbitMQ 3.10)
#   install.sh bookworm trixie     also PostgreSQL 17 and RabbitMQ 4.0, in a folder of their own
#   install.sh bookworm cluster    also what a cluster and its image are made with
#   install.sh bookworm examples   also what the example services in several languages need
#
# Asks nothing, starts nothing, and does nothing at all when everything is there. The second flavour lives in
# ${POSTROOM_CACHE:-$HOME/.cache/postroom}/trixie; remove that folder to be rid of it.
set -euo pipefail

cache="${POSTROOM_CACHE:-$HOME/.cache/postroom}"
policy=/usr/sbin/policy-rc.d

say() { printf 'install: %s\n' "$*"; }
fail() { printf 'install: %s\n' "$*" >&2; exit 1; }

# Where a package is recognised by the program it brings: a machine may have the program from somewhere else.
missing_packages() {
  local wanted=" $* "
  [ -x /usr/lib/postgresql/15/bin/initdb ] || echo postgresql-15
  [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || echo rabbitmq-server
  command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || echo pgbouncer
  compgen -G "/usr/lib/*/faketime/libfaketime.so.1" >/dev/null || echo libfaketime
  command -v openssl >/dev/null || echo openssl
  command -v cc >/dev/null || echo gcc libc6-dev
  command -v make >/dev/null || echo make
  command -v curl >/dev/null || echo curl
  if [[ $wanted == *" trixie "* ]]; then
    [ -x /usr/sbin/debootstrap ] || echo debootstrap
  fi
  if [[ $wanted == *" cluster "* ]]; then
    command -v containerd >/dev/null || echo containerd
    command -v runc >/dev/null || [ -x /usr/sbin/runc ] || echo runc
    [ -x /usr/lib/cni/bridge ] || echo containernetworking-plugins
    [ -x /usr/sbin/iptables ] || echo iptables
    command -v ip >/dev/null || [ -x /usr/sbin/ip ] || echo iproute2
    command -v jq >/dev/null || echo jq
    command -v musl-gcc >/dev/null || echo musl-tools
    [ -f /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
  fi
  if [[ $wanted == *" examples "* ]]; then
    /usr/bin/python3 -c 'import psycopg2' 2>/dev/null || echo python3 python3-psycopg2
    command -v node >/dev/null || echo nodejs
    command -v npm >/dev/null || echo npm
    command -v javac >/dev/null || echo default-jdk-headless
    [ -f /usr/share/java/postgresql.jar ] || echo libpostgresql-jdbc-java
  fi
}

# Debian starts a service as soon as its package is installed. The tests start their own servers on their own ports,
# so a start is refused while packages are being installed; whatever policy the machine had comes back afterwards.
forbid_service_starts() {
  if [ -e "$policy" ]; then mv "$policy" "$policy.before-postroom"; fi
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
}

restore_service_policy() {
  rm -f "$policy"
  if [ -e "$policy.before-postroom" ]; then mv "$policy.before-postroom" "$policy"; fi
}

# Shows the end of a log only when the command failed; a quiet install has nothing to read.
logged() {
  local log=$1
  shift
  if ! "$@" >>"$log" 2>&1; then
    tail -n 30 "$log" >&2
    fail "'$*' failed; the whole log is in $log"
  fi
}

install_bookworm() {
  local packages log
  packages=$(missing_packages "$@" | tr '\n' ' ')
  if [ -z "${packages// /}" ]; then
    say "the machine has all packages"
    return
  fi
  [ "$(id -u)" = 0 ] || fail "missing: $packages. Run this as root, or install these packages yourself"
  command -v apt-get >/dev/null || fail "missing: $packages. There is no apt-get here: this script is for Debian 12"
  log=$(mktemp "${TMPDIR:-/tmp}/postroom-apt.XXXXXX.log")
  say "installing $packages"
  export DEBIAN_FRONTEND=noninteractive
  # A broken third-party source must not stop us: whether the packages can be had shows in the next step.
  apt-get update -qq >>"$log" 2>&1 || say "apt-get update reported a problem; going on with what is known"
  forbid_service_starts
  trap restore_service_policy EXIT
  # shellcheck disable=SC2086 # a list of words on purpose
  logged "$log" apt-get install -y -qq --no-install-recommends $packages
  restore_service_policy
  trap - EXIT
  packages=$(missing_packages "$@" | tr '\n' ' ')
  [ -z "${packages// /}" ] || fail "still missing after the install: $packages; see $log"
  rm -f "$log"
}

# Everything happens in a folder with another name, which is renamed at the very end: an interrupted install is
# started afresh and can never be taken for a complete one.
install_trixie() {
  local root="$cache/trixie" partial="$cache/trixie.partial" log="$cache/trixie.log"
  if [ -f "$root/.postroom-complete" ]; then
    say "trixie is in $root"
    return
  fi
  [ "$(id -u)" = 0 ] || fail "the trixie flavour is a chroot: run this as root"
  mkdir -p "$cache"
  rm -rf --one-file-system "$partial" "$root"
  : >"$log"
  say "making a Debian trixie folder in $root (about a minute; log in $log)"
  logged "$log" "$(command -v debootstrap || echo /usr/sbin/debootstrap)" --variant=minbase trixie "$partial"
  printf '#!/bin/sh\nexit 101\n' >"$partial$policy"
  chmod 755 "$partial$policy"
  say "installing PostgreSQL 17, RabbitMQ 4.0 and PgBouncer in it"
  # A mount namespace of its own: the mounts end with the command, whatever becomes of it.
  # shellcheck disable=SC2016 # the inner shell expands
  logged "$log" unshare --mount --propagation private sh -euc '
    mount -t proc proc "$0/proc"
    mount --rbind /dev "$0/dev"
    cp /etc/resolv.conf "$0/etc/resolv.conf"
    export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
    chroot "$0" apt-get update -qq
    chroot "$0" apt-get install -y -qq --no-install-recommends postgresql-17 rabbitmq-server pgbouncer
    chroot "$0" apt-get clean' "$partial"
  touch "$partial/.postroom-complete"
  mv "$partial" "$root"
  say "trixie is complete"
}

# The image holds programs that need no library; Rust has its own parts for them.
install_static_target() {
  local target=x86_64-unknown-linux-musl rustup
  [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || return 0
  rustup=$(command -v rustup || echo "$HOME/.cargo/bin/rustup")
  [ -x "$rustup" ] || fail "Rust has no target $target, and there is no rustup to add it with"
  say "adding the target $target to Rust"
  "$rustup" target add "$target" || fail "'rustup target add $target' failed"
}

flavours=("$@")
[ ${#flavours[@]} -gt 0 ] || flavours=(bookworm)
for flavour in "${flavours[@]}"; do
  case "$flavour" in
    bookworm | trixie | cluster | examples) ;;
    *) fail "unknown word '$flavour': use bookworm, trixie, cluster, examples, or several of them" ;;
  esac
done
install_bookworm "${flavours[@]}"
case " ${flavours[*]} " in *" trixie "*) install_trixie ;; esac
case " ${flavours[*]} " in *" cluster "*) install_static_target ;; esac
