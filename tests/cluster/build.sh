#!/usr/bin/env bash
# Builds the programs of a Kubernetes node, helm and CoreDNS from their Go modules, in the versions that go.mod and
# go.sum name. Takes minutes and downloads a gigabyte the first time; does nothing when the programs are those of
# these sources. They are in ${POSTROOM_CACHE:-~/.cache/postroom}/cluster; remove that folder to be rid of them.
set -euo pipefail
. "$(dirname "$0")/settings.sh"
cd "$here"

sources=$(cat build.sh ../image/archive.sh programs/go.* programs/*/*.go dns/* | sha256sum)
[ "$(cat "$cache/built-from" 2>/dev/null)" = "$sources" ] && exit 0

find_go() {
  command -v go >/dev/null && return
  [ -x /usr/local/go/bin/go ] && PATH=$PATH:/usr/local/go/bin && return
  printf 'build: go is not there. Install Go 1.25 or newer, then run this again.\n' >&2
  exit 1
}

# What the programs answer when asked for their version; without it an API server takes itself for 0.0.0.
version_flags() {
  local version=$1 package=k8s.io/component-base/version major minor
  IFS=. read -r major minor _ <<<"${version#v}"
  printf -- '-X %s.gitVersion=%s -X %s.gitMajor=%s -X %s.gitMinor=%s -X %s.gitTreeState=clean' \
    "$package" "$version" "$package" "$major" "$package" "$minor" "$package"
}

# build FOLDER OUTPUT PACKAGE [LINKER-FLAGS]
build() { (cd "$1" && go build -ldflags "-s -w ${4:-}" -o "$bin/$2" "$3"); }

find_go
printf 'build: the programs of Kubernetes, from their Go modules, into %s (minutes, the first time)\n' "$cache"
mkdir -p "$bin"
rm -f "$cache/built-from"
export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false -mod=readonly'
kubernetes=$(awk '$1 == "k8s.io/kubernetes" {print $2}' programs/go.mod)
build programs kube ./kube "$(version_flags "$kubernetes")"
for program in etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl; do
  ln -sf kube "$bin/$program"
done
build programs helm helm.sh/helm/v3/cmd/helm
build programs pause ./pause
build dns coredns .

# The image of the container that keeps a pod's network.
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cp "$bin/pause" "$root/pause"
../image/archive.sh postroom/pause:1 "$root" '{"Entrypoint": ["/pause"], "User": "65535:65535"}' "$cache/pause.tar"
printf '%s' "$sources" >"$cache/built-from"
