"""longrope goes by whole sequences, whatever part of them a rank holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drumline_trainer.metrics.losses import read_losses
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_rank


def trained(
    gangs: GangStarter, folder: Path, *, original: int = 24, ranks: int = 1, **changes: Any
) -> list[float]:
    """The loss; half a sequence is shorter than the original length, a whole one longer."""
    scaling = {
        "kind": "longrope",
        "factor": 2.0,
        "magnitude": 30.0,  # so that the loss depends on positions
        "original_positions": original,
        "short_factors": "1,1,1,1,1,1,1,1",
        "long_factors": "2,3,4,5,6,7,8,9",
    }
    model = {"hidden_size": 64, "heads": 4, "kv_heads": 2, "rope_scaling": scaling}
    data = {"sequence_length": 32, "packing": "stream"}
    config = small(folder, steps=1, model=model, data=data, **changes)
    gangs.run(train_rank, config, None, world_size=ranks, checkpoint_folder=folder / "run")
    return list(read_losses(folder / "run" / "metrics.jsonl").values())


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("axis", ["tensor", "context"])
def test_the_long_factors_are_chosen_by_the_whole_sequence(
    gangs: GangStarter, tmp_path: Path, axis: str
) -> None:
    alone = trained(gangs, tmp_path / "alone")
    cut = trained(gangs, tmp_path / axis, ranks=2, parallelism={axis: 2})
    short = trained(gangs, tmp_path / "short", original=32)
    assert cut == pytest.approx(alone, rel=1e-5)
    assert abs(short[0] / alone[0] - 1) > 1e-4
