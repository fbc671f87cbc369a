#!/usr/bin/env bash
# build.sh [CARGO-ARGUMENT...]: builds the image of operator and worker without a container engine, as target/image/postroom.tar, and names
# it on standard output. The image holds the two programs, which need no library, the certificates of the public
# authorities and the user files: no shell, nothing to write to. The Containerfile here makes the same.
#
#   POSTROOM_IMAGE   its name and tag   (postroom:VERSION, which is what the chart asks for)
set -euo pipefail
cd "$(dirname "$0")/../.."

target=x86_64-unknown-linux-musl
programs=(postroom-operator postroom-worker)
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
name=${POSTROOM_IMAGE:-postroom:$version}
file=target/image/postroom.tar

cargo build --locked --release --target $target "${programs[@]/#/--package=}" "$@" >&2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/etc/ssl/certs" target/image
for program in "${programs[@]}"; do
  strip --strip-debug -o "$root/$program" "target/$target/release/$program"
done
cp tests/image/etc/passwd tests/image/etc/group "$root/etc/"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
chmod -R u=rwX,go=rX "$root"
tests/image/archive.sh "$name" "$root" '{"User": "65532:65532", "Env": ["PATH=/"], "WorkingDir": "/"}' "$file"
printf 'image: %s is %s, %d MB\n' "$file" "$name" $(($(stat -c %s "$file") / 1000000)) >&2
printf '%s\n' "$name"
