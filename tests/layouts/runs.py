"""Runs of layouts in one pool, each against the one process that trains the same model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from drumline_contract.config import TrainerConfig, merge
from drumline_trainer.metrics.losses import LOSSES_FILE
from tests.gloo.configs import write_text
from tests.layouts.cases import MOST_RANKS, STEPS, Case, plain
from tests.layouts.jobs import train, train_until
from tests.layouts.judge import Outcome, failings
from tests.layouts.materials import Materials
from tests.layouts.pool import Pool
from tests.layouts.settings import Cell

HALF = STEPS // 2


@dataclass(kw_only=True)
class Runs:
    """Folders of checkpoints by what was trained in them; nothing is trained twice."""

    folder: Path
    pool: Pool = field(default_factory=lambda: Pool(local_world_size=MOST_RANKS))
    """Its ranks have one compute thread each, also where there are few."""
    _known: dict[str, Outcome] = field(default_factory=dict[str, Outcome])

    @property
    def text(self) -> dict[str, object]:
        """The part of a configuration that names the text."""
        return {"data": {"source": str(write_text(self.folder / "text"))}}

    def alone(self, model: str, /, *, layers: int = 2, **changes: object) -> Outcome:
        """The run of one process."""
        name = f"alone {model} {layers} {changes}"
        if name not in self._known:
            config = TrainerConfig.from_dict(
                merge(merge(plain(model, layers=layers), self.text), changes)
            )
            one_by_one = merge(changes, {"micro_batch_size": 1})
            self._known[name] = self._outcome(
                config,
                ranks=1,
                reordered=lambda: self.alone(model, layers=layers, **one_by_one),
            )
        return self._known[name]

    def plain(self, case: Case, **changes: object) -> Outcome:
        """The run of one process that trains the same model as a layout."""
        return self.alone(case.model, layers=case.layers, **changes)

    def whole(self, case: Case, **changes: object) -> Outcome:
        """All steps in a layout."""
        name = f"{case.name} {changes}"
        if name not in self._known:
            config = case.config(**merge(self.text, changes))
            self._known[name] = self._outcome(config, ranks=case.ranks)
        return self._known[name]

    def failings_of(self, cell: Cell) -> list[str]:
        """How a setting in a layout trains otherwise than in one process."""
        materials, setting = Materials(self.folder / "materials"), cell.setting
        got = self.whole(cell.case, **materials.filled(setting.whole))
        expected = self.plain(cell.case, **materials.filled(dict(setting.changes)))
        if not setting.tolerance:
            return failings(got, expected)
        off = got.loss_error(expected)
        return [] if off <= setting.tolerance else [f"loss off by {off:.1e}"]

    def resumed(self, before: Case, after: Case, **changes: object) -> Outcome:
        """The second half in another layout than the first, of a model that fits both."""
        layers = {"model": {"layers": max(before.layers, after.layers)}}
        model = merge(merge(self.text, changes), layers)
        if before.layers >= after.layers:
            folder = self._killed(self.whole(before, **changes).folder)
        else:
            folder = self._fresh()
            config = before.config(**model)
            self.pool.run(train_until, config, HALF, ranks=before.ranks, checkpoint_folder=folder)
        config = after.config(**model)
        self.pool.run(train, config, ranks=after.ranks, checkpoint_folder=folder)
        return Outcome.of(folder)

    def in_two(self, before: Case, after: Case, **changes: object) -> Outcome:
        """The second half in another layout than the first, of one model."""
        folder = self._fresh()
        first, second = (each.config(**merge(self.text, changes)) for each in (before, after))
        self.pool.run(train_until, first, HALF, ranks=before.ranks, checkpoint_folder=folder)
        self.pool.run(train, second, ranks=after.ranks, checkpoint_folder=folder)
        return Outcome.of(folder)

    def _outcome(
        self,
        config: TrainerConfig,
        *,
        ranks: int,
        reordered: Callable[[], Outcome] | None = None,
    ) -> Outcome:
        folder = self._fresh()
        self.pool.run(train, config, ranks=ranks, checkpoint_folder=folder)
        return Outcome.of(folder, reordered=reordered)

    def _killed(self, folder: Path) -> Path:
        """What the same run had left behind, had it been killed after half of its steps."""
        killed = self._fresh()
        half = f"step-{HALF:08d}"
        shutil.copytree(folder / half, killed / half)
        losses = (folder / LOSSES_FILE).read_text().splitlines(keepends=True)
        (killed / LOSSES_FILE).write_text("".join(losses[:HALF]))
        return killed

    def _fresh(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))
