"""Gangs of two ranks on this machine, each of which trains one model type after the other."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.queues import Queue

from drumline_agent.rank_protocol.placement import Placement
from drumline_trainer.recovery.rendezvous_store import listen, store_on
from tools.architectures.truth import Outcome, model_types, outcomes

RANKS = 2
_IMPORTED = ("transformers", "drumline_trainer.parallelism.data_parallel.fsdp", "torch._dynamo")


def table(names: Sequence[str] = ()) -> list[Outcome]:
    """What became of these model types, or of all, in the order of their names."""
    for module in _IMPORTED:
        importlib.import_module(module)
    names = names or model_types()
    gangs = max(1, (os.cpu_count() or 1) // RANKS)
    context = multiprocessing.get_context("fork")
    found: Queue[Outcome] = context.Queue()
    stores, processes = [], []
    for gang in range(gangs):
        listener = listen(0, address="127.0.0.1")
        port = listener.getsockname()[1]
        stores.append(store_on(listener))
        for rank in range(RANKS):
            place = Placement(
                rank=rank,
                world_size=RANKS,
                local_rank=rank,
                local_world_size=RANKS,
                store_port=port,
                address="127.0.0.1",
            )
            own = list(names[gang::gangs])
            processes.append(context.Process(target=_rank, args=(place, own, found)))
            processes[-1].start()
    rows = [found.get() for _ in names]
    for process in processes:
        process.join()
    return sorted(rows, key=lambda row: row.model_type)


def _rank(placement: Placement, names: Sequence[str], found: Queue[Outcome]) -> None:
    for outcome in outcomes(placement, names):
        if placement.rank == 0:
            print(f"{outcome.model_type}: {outcome.reason or outcome.error}", flush=True)
            found.put(outcome)
