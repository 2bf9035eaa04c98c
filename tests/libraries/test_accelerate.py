from __future__ import annotations

from pathlib import Path

import pytest
import torch

accelerate = pytest.importorskip("accelerate", reason="make test-all WHAT=libraries")

from drumline_client.adapters.accelerate import DrumlineSteps  # noqa: E402
from drumline_client.environment import rank_place  # noqa: E402
from drumline_client.run import Run  # noqa: E402
from drumline_client.wire import PartSaved  # noqa: E402
from tests.libraries.notices import run_that_saves  # noqa: E402
from tests.played_agent import played_agent  # noqa: E402

STEPS = 6


def train(folder: Path, run: Run) -> dict[int, float]:
    """The losses of the steps that were done. Dropout and momentum: all of the state counts."""
    torch.manual_seed(1)
    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    drumline = DrumlineSteps(accelerator, str(folder), run)
    rows = torch.randn(STEPS, 2, 4, generator=torch.Generator().manual_seed(2))
    losses: dict[int, float] = {}
    for step in range(drumline.resume(), STEPS):
        loss = model(rows[step]).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses[step + 1] = float(loss.detach())
        if drumline.step(step + 1, loss=loss):
            break
    return losses


def test_a_notice_is_saved_at_its_step_and_nothing_is_lost(tmp_path: Path) -> None:
    outside = Run(None, place=rank_place({}))
    undisturbed = train(tmp_path / "undisturbed", outside)
    with played_agent() as agent:
        stopped = train(tmp_path / "run", run_that_saves(agent, step=3))
        path = str(tmp_path / "run" / "step-3")
        assert agent.wait_for(PartSaved) == PartSaved(step=3, path=path)
    (tmp_path / "run" / "step-5").mkdir()  # of a rank that died while it wrote
    resumed = train(tmp_path / "run", outside)
    assert set(stopped) == {1, 2, 3}
    assert stopped | resumed == undisturbed
    assert set(resumed) == {4, 5, 6}


def test_a_state_is_saved_once_and_is_not_complete_while_it_is_replaced(tmp_path: Path) -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    saves: list[bool] = []
    accelerator.register_save_state_pre_hook(
        lambda _models, _weights, folder: saves.append((Path(folder) / "complete").exists())
    )
    earlier, later = (
        DrumlineSteps(accelerator, str(tmp_path), Run(None, place=rank_place({}))) for _ in range(2)
    )
    earlier.save(3)
    earlier.save(3)  # on request and by its own schedule
    assert saves == [False]
    later.save(3)
    assert saves == [False, False]
    assert later.resume() == 3
