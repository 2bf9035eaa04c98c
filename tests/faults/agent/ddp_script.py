"""A plain torch script as torchrun starts it: DDP, checkpoints of its own, nothing of ours.

With USES_CLIENT it has the three lines of the client, and steps that take some time.
"""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, SAVED_EVERY, HELD_AT = 16, 4, 10
STEP_SECONDS = 0.3

run = importlib.import_module("drumline_client").join() if os.environ.get("USES_CLIENT") else None
dist.init_process_group("gloo")
rank, checkpoint = dist.get_rank(), Path(os.environ["CHECKPOINT"])
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
begin = 0


def save(step: int) -> None:
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**whole, "step": step}, checkpoint.with_suffix(".unfinished"))
    checkpoint.with_suffix(".unfinished").rename(checkpoint)


if checkpoint.exists():
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["step"]
for step in range(begin + 1, STEPS + 1):
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if rank == 0:
        print(f"iter {step}: loss {mean.item() / 2:.9f}, time 1.00ms, mfu 0.00%", flush=True)
        if step % SAVED_EVERY == 0:
            save(step)
    if run is not None:
        time.sleep(STEP_SECONDS)
        run.step(step, loss=mean.item() / 2)
        if run.should_save():
            if rank == 0:
                save(step)
                run.saved(step, checkpoint)
            if run.should_stop():
                break
    if os.environ.get("HOLDS") and begin == 0 and step == HELD_AT and rank == 1:
        time.sleep(600)  # until the test kills it
dist.destroy_process_group()
