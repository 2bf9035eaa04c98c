"""A torch script whose state is in snapshots alone: a model under DDP, another under FSDP2.

Dropout and AdamW: a random state or a moment that is lost shows in the losses.
"""

from __future__ import annotations

import importlib
import os
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY = 16, 6
HELD_AT = {0: 8, 6: 13}  # by the step it began with

run = importlib.import_module("drumline_client").join()
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)


def layers() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(8, 12), torch.nn.Dropout(0.2), torch.nn.Linear(12, 1)
    )


replicated = DistributedDataParallel(layers())
sharded = fully_shard(layers())
torch.manual_seed(rank)  # of the dropout: other states on each rank
optimizers = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in (replicated, sharded)]
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizers[0], STEPS)
state = {
    "replicated": replicated,
    "sharded": sharded,
    "optimizer": optimizers[0],
    "sharded optimizer": optimizers[1],
    "scheduler": scheduler,
    "seen": 0,
}
begin = run.restore(state) or 0
print(f"begins {begin}, seen {state['seen']}", flush=True)
for step in range(begin + 1, STEPS + 1):
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))
    loss = (replicated(inputs) * sharded(inputs)).square().mean()
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    scheduler.step()
    state["seen"] += 4
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    print(f"step {step}: loss {mean.item().hex()}, seen {state['seen']}", flush=True)
    run.step(step, loss=mean.item())
    if step % EVERY == 0:
        run.snapshot(state)
    if os.environ.get("HOLDS") and step == HELD_AT.get(begin):
        time.sleep(600)  # until the test kills a rank or a pod
run.done()
dist.destroy_process_group()
