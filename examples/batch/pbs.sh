#!/bin/bash
# Two nodes of four GPUs under PBS: one rank for each GPU. Never run by the tests.
#   qsub -v CONFIG=run.json examples/batch/pbs.sh
#PBS -N drumline
#PBS -l select=2:ncpus=32:ngpus=4:mpiprocs=4
#PBS -l walltime=24:00:00
#PBS -r y
set -euo pipefail
cd "$PBS_O_WORKDIR"

# mpiexec of PALS, of MPICH and of Intel MPI hands the environment on; Open MPI's needs
# `mpirun -x MASTER_ADDR`
MASTER_ADDR=$(head -n 1 "$PBS_NODEFILE")
export MASTER_ADDR
mpiexec -n "$(wc -l < "$PBS_NODEFILE")" \
    python -m drumline_trainer --config "$CONFIG" --checkpoint-folder checkpoints

# Without MPI, one rank on each node:
#   pbsdsh -- env WORLD_SIZE=2 MASTER_ADDR="$MASTER_ADDR" PATH="$PATH" \
#       bash -c "cd '$PBS_O_WORKDIR' && python -m drumline_trainer --config '$CONFIG'"
