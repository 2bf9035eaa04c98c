"""A script of a user's, for `standby`: DDP on Gloo with a step every now and then, without end."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEP_SECONDS = 0.2

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
step = 0
while True:
    step += 1
    loss = model(torch.ones(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if os.environ["RANK"] == "0":
        print(f"iter {step}: loss {loss.item():.9f}, time 1.00ms, mfu 0.00%", flush=True)
    time.sleep(STEP_SECONDS)
