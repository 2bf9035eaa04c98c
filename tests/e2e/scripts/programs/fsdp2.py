"""A plain script with FSDP2, whose ranks save their shards with torch.distributed.checkpoint.

It is the same script at each level; what L1 and L2 add says so.
"""

from __future__ import annotations

import journal
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

NEWEST = journal.FOLDER / "newest"
"""Names the newest checkpoint that is whole."""


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    journal.began()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)]
    model = fully_shard(torch.nn.Sequential(*layers))
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
    elif NEWEST.exists():
        step = load(model, optimizer, step=int(NEWEST.read_text()))
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
        if asked or step % journal.EVERY == 0:
            path = save(model, optimizer, step=step)
            if run is not None:  # L1
                run.saved(step, path)
        if run is not None and asked and run.should_stop():  # L1
            break
        if run is not None and journal.LEVEL == "L2" and step % journal.SNAPSHOT_EVERY == 0:
            run.snapshot(state)
    if step == journal.STEPS:
        whole = {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}
        journal.trained(whole)
    dist.destroy_process_group()


def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, step: int) -> str:
    weights, moments = get_state_dict(model, optimizer)
    path = str(journal.FOLDER / f"step-{step}")
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=path)
    if dist.get_rank() == 0:
        draft = NEWEST.with_suffix(".draft")
        draft.write_text(str(step))
        draft.replace(NEWEST)
    return path


def load(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, step: int) -> int:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=str(journal.FOLDER / f"step-{step}"))
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return step


main()
