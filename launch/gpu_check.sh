#!/usr/bin/env bash
# What one GPU makes of the loss, in at most seven minutes; needs jax, flax, optax and numpy, and nothing installed.
#   launch/gpu_check.sh [FILE] [--dry-run]
# Writes FILE (default: gpu_check.json, in the folder $OUT where that is set) part by part: a stopped run leaves what it has.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
exec timeout 420 "${PYTHON:-python3}" -m jaxcl.bench.gpu_check "$@"
