"""What a layout cannot be whatever its model is: of a model that only the ranks read."""

from __future__ import annotations

from drumline_trainer.config import ConfigError, TrainerConfig
from drumline_trainer.layout_validation import ViolationReason, violations

_OF_THE_MODEL = frozenset(
    {
        ViolationReason.HEADS,
        ViolationReason.EXPERT_BIASES,
        ViolationReason.HEAD_NORMS,
        ViolationReason.FFN,
        ViolationReason.SEQUENCE,  # which of a model of images is not read
        ViolationReason.POSITIONS,
        ViolationReason.IMAGES,
        ViolationReason.SCORES,
        ViolationReason.WINDOWS,
        ViolationReason.LAYERS,
        ViolationReason.NO_EXPERTS,
        ViolationReason.EXPERTS,
    }
)
"""Another model might not have them."""


def check_for_any_model(config: TrainerConfig, *, world_size: int) -> None:
    """Raise ConfigError where a layout is illegal whatever the model is."""
    for violation in violations(config, world_size=world_size):
        if violation.reason not in _OF_THE_MODEL:
            raise ConfigError(violation.text)
