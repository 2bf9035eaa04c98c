#!/bin/bash
# Two nodes of six GPUs under LSF with jsrun: one resource set for each GPU. Never run by the tests.
#   bsub -env "all, CONFIG=run.json" examples/batch/lsf.sh
#BSUB -J drumline
#BSUB -nnodes 2
#BSUB -W 24:00
#BSUB -o drumline.%J.log
set -euo pipefail

jsrun --nrs 12 --rs_per_host 6 --tasks_per_rs 1 --gpu_per_rs 1 --cpu_per_rs 7 \
    python -m drumline_trainer --config "$CONFIG" --checkpoint-folder "$LS_SUBCWD/checkpoints"
