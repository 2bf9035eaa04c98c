"""Check whether a run may resume from a saved state, by the state beside the tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from drumline_contract.config import TrainerConfig
from drumline_contract.config.saved import refuse_other_average, refuse_other_model
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.optimization.loss_scale import LossScale

_MAX_SAMPLES: Final = 1 << 62


def check_state(saved: Mapping[str, Any], *, config: TrainerConfig) -> None:
    """Check before a tensor is read; a pure function, so all ranks decide alike.

    Raises:
        ConfigError: the weights are of another model, or one has an average that the other has not.
        CorruptCheckpointError: intact, and not of this program.
    """
    saved_cursor(saved)
    saved_loss_scale(saved, config=config)
    refuse_other_model(saved, config.model)
    refuse_other_average(saved, average_decay=config.optimizer.average_decay)


def saved_cursor(saved: Mapping[str, Any]) -> int:
    """Return the data cursor: the number of samples consumed so far.

    Raises:
        CorruptCheckpointError: it is not a number of samples.
    """
    cursor = saved.get("cursor")
    match cursor:
        case int() if not isinstance(cursor, bool) and 0 <= cursor < _MAX_SAMPLES:
            return cursor
        case _:
            raise CorruptCheckpointError(f"cursor {str(cursor)[:32]!r} counts no samples")


def saved_loss_scale(saved: Mapping[str, Any], *, config: TrainerConfig) -> LossScale:
    """Return the loss scale of the next step.

    Raises:
        CorruptCheckpointError: the saved scale is not valid.
    """
    try:
        return LossScale.of(config, saved)
    except ValueError as error:
        raise CorruptCheckpointError(str(error)) from error
