#!/usr/bin/env bash
# The step of CI that stops a prompt which can't be cached: it needs no cluster, only kubectl and
# `promptprefix`. It ends with the first overlay that has a finding.
set -euo pipefail
cd "$(dirname "$0")"
for overlay in prompts/overlays/*/; do
  echo "==> $overlay"
  kubectl kustomize "$overlay" | promptprefix lint -f -
done
