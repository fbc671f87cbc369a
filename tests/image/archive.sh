#!/usr/bin/env bash
# archive.sh NAME FOLDER CONFIG FILE: an image of one layer without a container engine.
#
# NAME is its name and tag, FOLDER what becomes its root, CONFIG a JSON object with Entrypoint, Env, User and the like.
# FILE is what `docker load`, `ctr images import` and `kind load image-archive` take. The same content gives the same
# image, byte for byte.
set -euo pipefail

name=$1 folder=$2 config=$3 file=$4
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT

plain=(--sort=name --owner=0 --group=0 --numeric-owner --mtime=@0)
tar "${plain[@]}" -C "$folder" -cf "$parts/layer.tar" .
sum=$(sha256sum <"$parts/layer.tar" | cut -d' ' -f1)
jq -n --arg sum "sha256:$sum" --argjson config "$config" \
  '{architecture: "amd64", os: "linux", created: "1970-01-01T00:00:00Z", config: $config,
    rootfs: {type: "layers", diff_ids: [$sum]}}' >"$parts/config.json"
jq -n --arg name "$name" '[{Config: "config.json", RepoTags: [$name], Layers: ["layer.tar"]}]' >"$parts/manifest.json"
tar "${plain[@]}" -C "$parts" -cf "$file" manifest.json config.json layer.tar
