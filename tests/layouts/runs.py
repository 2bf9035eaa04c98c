"""Runs of layouts in one pool, each against the one process that trains the same model."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from drumline_trainer.config import TrainerConfig, merge
from tests.gloo.configs import write_text
from tests.layouts.cases import STEPS, Case, plain
from tests.layouts.jobs import train, train_until
from tests.layouts.judge import LOSS_TOLERANCE, WEIGHT_TOLERANCE, Outcome
from tests.layouts.pool import Pool

HALF = STEPS // 2


@dataclass(kw_only=True)
class Runs:
    """Folders of checkpoints by what was trained in them."""

    folder: Path
    pool: Pool = field(default_factory=Pool)
    _plain: dict[tuple[str, str], Outcome] = field(default_factory=dict)

    @property
    def text(self) -> dict[str, object]:
        """The part of a configuration that names the text."""
        return {"data": {"source": str(write_text(self.folder / "text"))}}

    def plain(self, model: str, *, precision: str = "fp32") -> Outcome:
        """The run of one process."""
        key = (model, precision)
        if key not in self._plain:
            raw = merge(merge(plain(model), self.text), {"precision": precision})
            folder = self._fresh(f"plain {model} {precision}")
            self.pool.run(train, TrainerConfig.from_dict(raw), ranks=1, checkpoint_folder=folder)
            self._plain[key] = Outcome.of(folder)
        return self._plain[key]

    def whole(self, case: Case, **changes: object) -> Outcome:
        """All steps in a layout."""
        folder = self._fresh(case.name)
        config = case.config(**merge(self.text, changes))
        self.pool.run(train, config, ranks=case.ranks, checkpoint_folder=folder)
        return Outcome.of(folder)

    def half(self, case: Case) -> Path:
        """Folder of the checkpoint after half of the steps; made once for each layout."""
        folder = self.folder / f"half {case.name}"
        if not folder.exists():
            folder.mkdir()
            config = case.config(**self.text)
            self.pool.run(train_until, config, HALF, ranks=case.ranks, checkpoint_folder=folder)
        return folder

    def resumed(self, before: Case, after: Case) -> Outcome:
        """The second half in another layout than the first."""
        folder = self.folder / "resumed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.half(before), folder)
        config = after.config(**self.text)
        self.pool.run(train, config, ranks=after.ranks, checkpoint_folder=folder)
        return Outcome.of(folder)

    def _fresh(self, name: str) -> Path:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder


def failings(got: Outcome, expected: Outcome) -> list[str]:
    """What differs from the one process by more than rounding."""
    loss = got.loss_error(expected)
    weight, name = got.weight_error(expected)
    told: list[str] = []
    if not loss <= LOSS_TOLERANCE:
        told.append(f"loss off by {loss:.1e}")
    if not weight <= WEIGHT_TOLERANCE:
        told.append(f"{name} off by {weight:.1e}")
    return told
