"""A model of a folder is fine-tuned under real agents, which lose a rank on the way."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from drumline_trainer.__main__ import main
from drumline_trainer.contract import ExitCode
from drumline_trainer.models.hugging_face import import_hugging_face
from tests.faults.agent.gang import Gang
from tests.faults.agent.warm import WarmBand, WarmStarter
from tests.gloo.tuned import write_conversations, write_tiny_llama

pytestmark = pytest.mark.gloo

STEPS = 80
"""So many that they are not done before a rank of the gang is killed."""


def tuning(gang: Gang, model: Path, records: Path) -> dict[str, str]:
    """Variables of adapters that learn conversations; nothing but the folder says of which model.

    The ranks choose their layout, which needs the folder's model too.
    """
    changes: dict[str, Any] = {
        "model_from": str(model),
        "data": {"source": str(records), "pattern": "train.jsonl", "sequence_length": 64},
        "lora": {"rank": 4},
        "optimizer": {"learning_rate": 0.01},
        "checkpoint": {"snapshot_every_steps": 10},
        "parallelism": {"mode": "auto"},
    }
    return gang.training(steps=STEPS, **changes)


async def test_adapters_on_a_folders_model_survive_a_killed_rank_and_are_exported(
    gang: Gang, starter: WarmStarter, tmp_path: Path
) -> None:
    model = write_tiny_llama(tmp_path / "mistral", sliding_window=24)
    records = write_conversations(tmp_path / "records")
    whole = WarmBand(folder=tmp_path / "whole", starter=starter)
    whole.folder.mkdir()
    undisturbed = Gang(whole)
    await undisturbed.start(2, variables=tuning(undisturbed, model, records))
    await undisturbed.push()
    assert await undisturbed.ended() == [0, 0]
    await whole.stop()

    await gang.start(2, variables=tuning(gang, model, records))
    await gang.push()
    pids = await gang.pids()
    await gang.reached(20)
    os.kill(pids[1], signal.SIGKILL)
    await gang.incident()
    assert await gang.ended() == [0, 0]
    assert gang.losses() == undisturbed.losses()
    assert gang.weights() == undisturbed.weights()

    [*_, newest] = sorted(gang.folder.glob("step-????????"))
    assert main(["export", str(newest), str(tmp_path / "tuned")]) == ExitCode.OK
    described, weights = import_hugging_face(tmp_path / "tuned")
    before, base = import_hugging_face(model)
    assert described == before
    learned, begun = dict(weights), dict(base)
    assert {name for name in begun if not torch.equal(learned[name], begun[name])}
    assert (tmp_path / "tuned" / "chat_template.jinja").exists() or (
        tmp_path / "tuned" / "tokenizer_config.json"
    ).exists()


async def test_a_folder_without_a_model_ends_the_job_and_spends_no_restart(
    gang: Gang, tmp_path: Path
) -> None:
    records = write_conversations(tmp_path / "records")
    await gang.start(2, variables=tuning(gang, tmp_path / "absent", records))
    await gang.push()

    assert await gang.ended() == [ExitCode.CONFIG, ExitCode.CONFIG]
    assert "absent/config.json: No such file" in gang.leader.report.error
    assert len(gang.leader.events("ranks_started")) == 1
