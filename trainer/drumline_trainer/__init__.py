"""The bundled PyTorch trainer: runs in the pods of a TrainingJob, or without any cluster.

`train` has the loop: a batch, `forward_backward`, clipping, the optimizer, a report. `models` are
written for one device and know no parallelism. `assembly` applies it in one order: stages, tensor,
context, expert, adapters, recompute, data parallel, the schedule. `parallelism` has one package
for each; none knows another. `data` turns files into batches that resume exactly. `checkpoint`
saves and restores by shards, `recovery` restores a rank from a peer or a snapshot. `rank` is the
process, `launch` starts it under torchrun, Slurm or MPI.

It never talks to Kubernetes and loads no pickle. Settings and model shapes are values of
`drumline_contract`; the process around a rank is `drumline_agent`.

Start with `train.py`, then `assembly/assemble.py`, then one package of `parallelism`.

Data: `data.run_data` -> a batch -> `forward_backward` -> gradients -> `optimization` -> weights;
every few steps a snapshot and a checkpoint. See docs/training.md.
"""
