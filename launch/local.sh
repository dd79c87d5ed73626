#!/usr/bin/env bash
# Starts several processes of one command on this machine, joined by jax.distributed.
#
#     launch/local.sh 2 python my_training.py
#
# Each finds its number, how many there are and where to meet in the environment: JAX_PROCESS_ID, JAX_NUM_PROCESSES and
# JAX_COORDINATOR_ADDRESS, which `jaxcl.mesh.join_processes()` hands to `jax.distributed.initialize`. Lines are printed with the number of their process in front. When one fails, all are stopped.
set -euo pipefail
if [ $# -lt 2 ] || ! [[ $1 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: $0 PROCESSES COMMAND [ARGUMENTS]" >&2
  exit 2
fi
count=$1
shift
port=${PORT:-$(python3 -c 'import socket; s = socket.socket(); s.bind(("localhost", 0)); print(s.getsockname()[1])')}
export JAX_COORDINATOR_ADDRESS="localhost:$port" JAX_NUM_PROCESSES=$count

processes=()
trap 'kill "${processes[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
for ((i = 0; i < count; i++)); do
  JAX_PROCESS_ID=$i "$@" > >(sed -u "s/^/[$i] /") 2> >(sed -u "s/^/[$i] /" >&2) &
  processes+=($!)
done
for ((i = 0; i < count; i++)); do
  code=0
  wait -n || code=$?
  if [ "$code" -ne 0 ]; then
    echo "$0: a process ended with exit code $code; stopping the others" >&2
    exit "$code"
  fi
done
