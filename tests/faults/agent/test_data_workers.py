"""A notice reaches a script and not its data workers, whose death would interrupt the save."""

from __future__ import annotations

import signal
import sys

import pytest

from drumline_contract import ExitCode
from tests.faults.agent.commands import CommandBand, start_commands
from tests.faults.agent.gang import Gang

pytestmark = pytest.mark.extended(keep=1)

READS = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader

asked = []
if {handles}:
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
ready = False
for batch in DataLoader(range(1_000_000_000), num_workers=2):
    if not ready:
        ready = True
        print("ready", flush=True)
    if asked and batch.item() % 100 == 0:
        print("has saved", flush=True)
        sys.exit(0)
"""


@pytest.mark.parametrize("handles", [True, False])
async def test_a_script_reads_data_until_it_has_saved(pods: Gang, *, handles: bool) -> None:
    assert isinstance(pods.band, CommandBand)
    script = pods.band.folder / "train.py"
    script.write_text(READS.format(handles=handles))
    pods.band.command = [sys.executable, str(script)]
    await start_commands(pods, 1, script="")
    await pods.leader.until_line("ready")
    pods.leader.process.send_signal(signal.SIGTERM)
    assert await pods.leader.ended() == ExitCode.PREEMPTED
    [ended] = pods.leader.events("rank_exited")
    assert ended["code"] == (0 if handles else -signal.SIGTERM)
    assert ("has saved" in pods.leader.lines) is handles
