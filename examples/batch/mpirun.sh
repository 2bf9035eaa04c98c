#!/bin/bash
# Open MPI over ssh, without a batch system; started on the first host of the list. The tests run
# mpirun on one machine only.
#   examples/batch/mpirun.sh run.json host-a:8,host-b:8
set -euo pipefail

mpirun --host "$2" --map-by ppr:8:node --bind-to none \
    -x MASTER_ADDR="$(hostname)" -x PYTHONPATH \
    python -m drumline_trainer --config "$1" --checkpoint-folder "$PWD/checkpoints"
