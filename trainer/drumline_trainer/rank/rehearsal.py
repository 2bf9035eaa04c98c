"""A rehearsal on this machine: a slice of a planned run, trained for three steps and measured.

Rank 0 writes what autograd kept beside the run's own step records; `measurement` reads both.
"""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import ExitCode
from drumline_contract.config import ConfigError, MetricsConfig, TrainerConfig
from drumline_contract.layout import Layout
from drumline_planner.rehearsal import RehearsalHost, SliceMeasurement, sees_all, slice_of
from drumline_trainer.host.memory import available_memory
from drumline_trainer.launch.local import fork_ranks
from drumline_trainer.launch.preload import preload
from drumline_trainer.metrics.kept_activations import KeptActivations
from drumline_trainer.metrics.sinks import STEPS_FILE
from drumline_trainer.rank.run import rank_main

_KEPT_FILE = "kept-activations.json"
_MAX_RANKS = 8
"""Processes on a machine without GPUs: two on each of three axes."""
_RANK_BYTES = 1 << 30
"""Minimum memory of such a process, torch included."""
_MOST_BYTES = 4096
"""Maximum size of the child's message."""


def rehearse(config: TrainerConfig, layout: Layout, *, target: Path) -> int:
    """Train the smallest slice of a run here, and write what it was and what it held.

    Args:
        config: configuration of the whole run, with its layout written out.
        layout: layout of the whole run.
        target: JSON file to write: `host`, `slice`, `measured`.

    Returns:
        An exit code of the contract.

    Raises:
        ConfigError: there is no slice for this machine.
        OSError: the file cannot be written.
    """
    # Phase 1: choose a slice that fits this machine.
    host = this_host()
    rehearsed = slice_of(config, layout, host=host)
    # Phase 2: train it in forked ranks. They report through files, because a fork has no return
    # value.
    with TemporaryDirectory(prefix="drumline-rehearsal-") as name:
        folder = Path(name)
        config = replace(rehearsed.config, metrics=MetricsConfig(folder=name))
        # The parent imports torch once. Forked ranks share its pages.
        preload(config, ranks=rehearsed.ranks)
        work = partial(rehearse_rank, config=config, folder=folder)
        code = fork_ranks(work, ranks=rehearsed.ranks)
        # A failed rank leaves no complete measurement, so none is read.
        if code != ExitCode.OK:
            return code
        # Phase 3: measure and write, before the folder is deleted.
        measured = measurement(config, folder=folder, gpu=host.gpu)
    sliced = {
        "config": rehearsed.config.written(),
        "ranks": rehearsed.ranks,
        "smaller": rehearsed.smaller,
    }
    written = {"host": asdict(host), "slice": sliced, "measured": asdict(measured)}
    target.write_text(json.dumps(written, indent=1) + "\n")
    return ExitCode.OK


def this_host() -> RehearsalHost:
    """Return the resources of this machine.

    A child looks for them, because CUDA cannot be used in a forked process whose parent has
    initialized it.

    Raises:
        ConfigError: the GPUs of this machine cannot be used.
    """
    # The parent must stay without CUDA: `fork_ranks` forks from it later.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send_bytes(json.dumps(asdict(_seen())).encode()))
    child.start()
    # The parent's copy of the sending end would keep the pipe open after the child's death.
    sender.close()
    try:
        return RehearsalHost(**json.loads(receiver.recv_bytes(_MOST_BYTES)))
    # EOF without a message: the child failed, for instance in the driver.
    except EOFError:
        raise ConfigError("rehearsal: the GPUs of this machine cannot be used") from None
    finally:
        child.join()


def _seen() -> RehearsalHost:
    if torch.cuda.is_available():
        # The GPU with the least free memory decides, because all ranks get equal shares.
        free = min(torch.cuda.mem_get_info(n)[0] for n in range(torch.cuda.device_count()))
        return RehearsalHost(
            gpu=torch.cuda.get_device_name(0),
            devices=torch.cuda.device_count(),
            memory_bytes=free,
        )
    available = available_memory()
    # Two units of memory per process: one for torch and one for the slice.
    devices = max(1, min(_MAX_RANKS, available // (2 * _RANK_BYTES)))
    return RehearsalHost(gpu="", devices=devices, memory_bytes=available // devices - _RANK_BYTES)


def rehearse_rank(placement: Placement, *, config: TrainerConfig, folder: Path) -> ExitCode:
    """Run a rank as usual, and count the bytes that autograd keeps.

    Args:
        placement: rank and pod of this process.
        config: configuration of the run.
        folder: folder of the measurements.
    """
    kept = KeptActivations()
    # The hook counts on every rank, so all ranks do the same work. Only rank 0 writes.
    with kept.watched():
        code = rank_main(config, placement=placement)
    if placement.rank == 0 and code is ExitCode.OK:
        (folder / _KEPT_FILE).write_text(json.dumps(kept.most_bytes))
    return code


def measurement(config: TrainerConfig, *, folder: Path, gpu: str) -> SliceMeasurement:
    """Return rank 0's measurements of its last step.

    Args:
        config: configuration of the run.
        folder: folder of the measurements.
        gpu: name of the GPU model.

    Raises:
        OSError: a file cannot be read.
    """
    lines = (folder / STEPS_FILE).read_text().splitlines()
    # The last step: the first one includes allocation, and moments exist from the first update on.
    last: dict[str, Any] = json.loads(lines[-1])
    memory: dict[str, int] = last["memory"]
    kept = int(json.loads((folder / _KEPT_FILE).read_text()))
    return SliceMeasurement(
        gpu=gpu,
        state_bytes=sum(memory.get(name, 0) for name in ("weights", "gradients", "optimizer")),
        # Hooks that do not see everything would give a number that is too small.
        kept_bytes=kept if sees_all(config) else None,
        peak_bytes=memory["peak"] if gpu else None,
        step_seconds=float(last["step_seconds"]),
    )
