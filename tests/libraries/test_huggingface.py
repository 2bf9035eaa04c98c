from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("accelerate", reason="make test-all WHAT=libraries")
transformers = pytest.importorskip("transformers")

from drumline_client.adapters.huggingface import DrumlineCallback, newest_checkpoint  # noqa: E402
from drumline_client.wire import PartSaved, StepReport  # noqa: E402
from tests.libraries.notices import run_that_saves  # noqa: E402
from tests.played_agent import played_agent  # noqa: E402

STEPS = 6


def trainer(folder: Path, *callbacks: DrumlineCallback, **arguments: Any) -> Any:
    """A tiny GPT-2 with dropout, so that equal losses mean equal random states, too."""
    torch.manual_seed(1)
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=8)
    tokens = torch.randint(32, (64, 8), generator=torch.Generator().manual_seed(2))
    options: dict[str, Any] = {
        "max_steps": STEPS,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=transformers.TrainingArguments(str(folder), **(options | arguments)),
        train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        eval_dataset=[{"input_ids": row, "labels": row} for row in tokens[:4]],
        callbacks=list(callbacks),
    )


def losses(of: Any) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in of.state.log_history if "loss" in row}


def test_a_notice_is_saved_at_its_step_and_nothing_is_lost(tmp_path: Path) -> None:
    undisturbed = trainer(tmp_path / "undisturbed")
    undisturbed.train()
    folder = tmp_path / "run"
    assert newest_checkpoint(str(folder)) is None
    with played_agent() as agent:
        stopped = trainer(folder, DrumlineCallback(run_that_saves(agent, step=3)))
        stopped.train()
        assert agent.wait_for(PartSaved) == PartSaved(step=3, path=str(folder / "checkpoint-3"))
    assert stopped.state.global_step == 3
    (folder / "checkpoint-5").mkdir()  # as a rank leaves it that dies while it writes
    resumed = trainer(folder)
    resumed.train(resume_from_checkpoint=newest_checkpoint(str(folder)))
    assert losses(resumed) == losses(undisturbed)
    assert set(losses(undisturbed)) == set(range(1, STEPS + 1))


def test_steps_losses_and_evaluations_are_reported(tmp_path: Path) -> None:
    with played_agent() as agent:
        run = run_that_saves(agent, step=2, leave=False)
        whole = trainer(tmp_path, DrumlineCallback(run), eval_strategy="steps", eval_steps=STEPS)
        whole.train()
        assert agent.wait_for(PartSaved).step == 2
        run.done()
        while (report := agent.wait_for(StepReport)).phase != "done":
            pass
    assert whole.state.global_step == STEPS
    assert (report.step, report.total_steps) == (STEPS, STEPS)
    assert report.loss == losses(whole)[STEPS - 1]  # the newest that was logged at the boundary
