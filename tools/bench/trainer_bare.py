"""The bare script a start is measured against: import what it takes, meet, one step, say so.

    python -m tools.bench.trainer_bare LAYOUT RANKS TEXT

Its ranks are forked after the import, as ours are. It reads its samples as ours does: what a
start costs besides torch is part of both.

LAYOUT is fsdp or ddp, with torch's wrappers and optimizer and all that those import; or hand: the
same step without them, which imports of torch what a start of ours with ddp does.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from drumline_contract.config import TrainerConfig
from tools.bench import trainer_plain as plain

IMPORTS = {
    "hand": (),
    "ddp": ("torch._dynamo",),
    "fsdp": ("torch._dynamo", "torch.distributed.fsdp"),
}
"""What the ranks would import at their first step: here it costs once for all of them."""


def main(layout: str, ranks: int, text: Path) -> None:
    """Import, fork and wait."""
    for module in IMPORTS[layout]:
        importlib.import_module(module)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    processes = [
        fork.Process(target=rank_main, args=(layout, rank, ranks, port, text))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def rank_main(layout: str, rank: int, ranks: int, port: int, text: Path) -> None:
    """One step of one rank; rank 0 prints once it is done."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
    )
    config = TrainerConfig()  # what ours trains where nothing is set
    length = config.data.sequence_length
    model = plain.PlainDecoder(config.model, length=length)
    make = plain.alone_step if ranks == 1 and layout != "hand" else plain.STEPS[layout]
    step = make(model, config.optimizer)
    count = config.global_batch_size // (1 if layout == "tp" else ranks)
    tokens = torch.frombuffer(bytearray(text.read_bytes()), dtype=torch.uint8)
    windows = tokens[: count * (length + 1)].view(count, -1).long()
    loss = step(windows[:, :-1], windows[:, 1:], config.optimizer.learning_rate)
    if rank == 0:
        print(f"step 1 loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
