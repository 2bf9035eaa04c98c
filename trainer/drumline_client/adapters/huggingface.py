"""Use the Trainer of Hugging Face's transformers: `Trainer(..., callbacks=[DrumlineCallback()])`.

Steps, losses and evaluations are reported. When a node leaves or the job is preempted, the Trainer
saves at the agreed step, as its own schedule would, and stops if the pods are given back.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from drumline_client.adapters.checkpoint_folder import agreed_newest
from drumline_client.run import Run, join


class DrumlineCallback(TrainerCallback):
    """Reports a Trainer's run, and has it save on request."""

    def __init__(self, run: Run | None = None) -> None:
        """Create the callback.

        Args: result of `join`, or nothing.
        """
        self._run = join() if run is None else run
        self._loss: float | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Set the number of steps."""
        self._run.expect(state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report a boundary on every rank. The Trainer saves right after it."""
        self._run.step(state.global_step, loss=self._loss)
        if self._run.should_save():
            control.should_save = True

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report that this rank has written its files of a checkpoint, by request or by schedule.

        The Trainer is stopped here and not before, because a checkpoint contains the control's
        state.
        """
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self._run.saved(state.global_step, folder)
        if self._run.should_stop():
            control.should_training_stop = True

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **more: Any
    ) -> None:
        """Report the mean loss since the last log, which the Trainer has read from the device."""
        self._loss = (logs or {}).get("loss", self._loss)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report evaluation, which has no training steps."""
        self._run.phase("evaluating")

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report the end, because the script does no training after it (a last save, an upload)."""
        self._run.phase("saving")


def newest_checkpoint(output_dir: str) -> str | None:
    """Return the newest complete checkpoint for `train(resume_from_checkpoint=...)`, or None.

    The Trainer writes `trainer_state.json` last. A folder without it was incomplete when its rank
    died, and `resume_from_checkpoint=True` would fail on it. With several ranks, every rank gets
    what rank 0 finds, and waits until it sees it.

    Raises:
        FileNotFoundError: this rank does not see the checkpoint of rank 0.
    """
    newest = agreed_newest(Path(output_dir), r"checkpoint-(\d+)", is_whole=_is_whole)
    return None if newest is None else str(newest[1])


def _is_whole(folder: Path) -> bool:
    """Return whether a checkpoint's last file is whole, and those that other ranks write."""
    try:
        state = json.loads((folder / "trainer_state.json").read_bytes())
    except (OSError, ValueError):  # it is missing, or was cut by a full disk
        return False
    # Rank 0 waits for no other rank's random state.
    return isinstance(state, dict) and all(
        zipfile.is_zipfile(path) for path in folder.glob("rng_state*.pth")
    )
