#!/usr/bin/env bash
# Asynchronous training where it pays: the team of run_search.sh, whose searches take a second in the median, as those of a remote engine.
#
#   bash examples/run_async.sh                                   the embedded default: tiny models, generated facts, CPU; nothing is downloaded
#   bash examples/run_async.sh async_training.mode=sync          the same, synchronously
#   bash examples/run_async.sh eval                              evaluate the last checkpoint of the experiment
#   bash examples/run_async.sh key=value ...                     any key of docs/config.md
#
# examples/README.md lists the variables, which are those of run_search.sh; EXPERIMENT is async_seed<SEED> by default.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

FIRST=()
if [ "${1:-}" = eval ]; then
  FIRST=(eval)
  shift
fi
MODE=()
if [[ " $* " != *" async_training.mode="* ]]; then MODE=(async_training.mode=fully_async async_training.staleness_threshold=2); fi
EXPERIMENT=${EXPERIMENT:-async_seed${SEED:-0}} exec bash examples/run_search.sh ${FIRST[@]+"${FIRST[@]}"} ${MODE[@]+"${MODE[@]}"} env.params.latency_s=1 "$@"
