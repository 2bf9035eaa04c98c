"""Mutants of what a trainer must not get wrong: layouts, checkpoints, recovery.

Some tests start gangs. Here their ranks are forked from the process with the fault, so that it is
in them too.
"""

from __future__ import annotations

import importlib
import multiprocessing
from multiprocessing import forkserver

import torch

from tests.gloo import gang
from tools.mutants.target import ROOT, Target

UNIT, GLOO = "tests/unit/trainer", "tests/gloo"
MISSING_RANK_SECONDS = 30
"""Ranks that wait for one another for ever: that is noticed too."""


class ForkingStarter(gang.GangStarter):
    """Forks ranks from this very process."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("fork")  # type: ignore[assignment] - a fork server, elsewhere


def fork_ranks_here() -> None:
    """Nothing is forked from a server that has no fault; what ranks import is imported once."""
    torch.set_num_threads(1)  # a pool of threads does not survive a fork: a rank would wait for it
    for module in gang.PRELOADED:
        importlib.import_module(module)
    gang.GangStarter = ForkingStarter  # type: ignore[misc] - only in this process
    forkserver.ensure_running = lambda: None


TRAINER = Target(
    package=ROOT / "trainer",
    areas={
        "layout": ("drumline_contract/layout", "drumline_contract/layout_validation"),
        "checkpoint": ("drumline_trainer/checkpoint/*",),
        "recovery": (
            "drumline_trainer/recovery/*",
            *("drumline_agent/rank_protocol/control", "drumline_agent/rank_protocol/orders"),
        ),
    },
    tests=(
        f"{UNIT}/test_layout.py",
        f"{UNIT}/test_layout_validation.py",
        f"{UNIT}/test_shards_gradients.py",
        f"{UNIT}/test_preflight.py",
        f"{UNIT}/test_early_stopping.py",
        f"{UNIT}/checkpoint",
        f"{UNIT}/recovery",
        f"{UNIT}/rank_protocol",
        f"{UNIT}/assembly/test_stage_plan.py",
        f"{UNIT}/parallelism/pipeline_parallel/test_schedule_orders.py",
        f"{UNIT}/parallelism/pipeline_parallel/test_tied.py",
        f"{GLOO}/test_checkpoint.py",
        f"{GLOO}/test_resume.py",
        f"{GLOO}/test_notices.py",
        f"{GLOO}/test_background_saves.py",
    ),
    options=(
        f"--timeout={MISSING_RANK_SECONDS}",
        f"--deselect={GLOO}/test_checkpoint.py::test_every_flipped_bit_and_every_cut_is_seen",
    ),
    goal=0.7,
    memory_bytes=24 << 30,
    prepare=fork_ranks_here,
)
