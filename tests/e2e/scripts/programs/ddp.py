"""A plain script as torchrun starts it: DDP, and rank 0 saves every ten steps.

It is the same script at each level; what L1 and L2 add says so.
"""

from __future__ import annotations

from pathlib import Path

import journal
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = journal.FOLDER / "checkpoint"


def save(path: Path, **state: object) -> None:
    draft = path.with_suffix(".draft")
    torch.save(state, draft)
    draft.replace(path)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    journal.began()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step, run = 0, None
    if journal.LEVEL != "L0":
        import drumline_client  # noqa: PLC0415 - L1

        run = drumline_client.join()
        run.expect(journal.STEPS)
    state = {"model": model, "optimizer": optimizer}
    restored = run.restore(state) if run is not None and journal.LEVEL == "L2" else None
    if restored is not None:
        step = restored
    elif CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    while step < journal.STEPS:
        step += 1
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        journal.finished(step, mean.item())
        asked = False
        if run is not None:  # L1
            run.step(step, loss=mean.item() / dist.get_world_size())
            asked = run.should_save()
        if rank == 0 and (asked or step % journal.EVERY == 0):
            save(
                CHECKPOINT,
                model=model.state_dict(),
                optimizer=optimizer.state_dict(),
                step=step,
            )
            if run is not None:  # L1
                run.saved(step, CHECKPOINT)
        if run is not None and asked and run.should_stop():  # L1
            break
        if run is not None and journal.LEVEL == "L2" and step % journal.SNAPSHOT_EVERY == 0:
            run.snapshot(state)
    if step == journal.STEPS:
        journal.trained(model.module.state_dict())
    dist.destroy_process_group()


main()
