#!/usr/bin/env bash
# Makes the five example services ready to run, in target/examples; does nothing that is done already.
# Needs Python 3 with psycopg2, Node.js with npm, Go, Java with Debian's JDBC driver, and Rust: tests/services/install.sh examples.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=target/examples
mkdir -p "$out/node"
go_program=$(command -v go || echo /usr/local/go/bin/go)

cp tests/examples/node/package.json tests/examples/node/package-lock.json "$out/node/"
if ! cmp -s tests/examples/node/package-lock.json "$out/node/node_modules/.installed"; then
  (cd "$out/node" && npm ci --silent --no-audit --no-fund --ignore-scripts)
  cp tests/examples/node/package-lock.json "$out/node/node_modules/.installed"
fi
cp tests/examples/node/reserve.js "$out/node/"
"$go_program" build -C tests/examples/go -o "$PWD/$out/reserve-go" .
mkdir -p "$out/java"
javac -d "$out/java" tests/examples/java/Reserve.java
