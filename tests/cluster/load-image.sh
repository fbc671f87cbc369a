#!/usr/bin/env bash
# load-image.sh FILE: puts an image archive into the cluster's node. Pods name it with its tag, which must not be
# `latest`, because that would be looked for in a registry.
set -euo pipefail
. "$(dirname "$0")/settings.sh"
"$here/enter.sh" ctr --namespace k8s.io images import - <"$1"
