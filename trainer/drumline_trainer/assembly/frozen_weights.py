"""Weights that stay as they begin: no gradient, no state of the optimizer, in no checkpoint."""

from __future__ import annotations

import difflib

from torch import nn

from drumline_trainer.config import ConfigError, TrainerConfig
from drumline_trainer.config.learning import unmatched


def freeze_weights(model: nn.Module, config: TrainerConfig) -> None:
    """Freeze what `trainable` leaves out, or `freeze` names, in place.

    Raises:
        ConfigError: a pattern is no weight's name, or nothing would learn.
    """
    if not config.freezes:
        return
    field = "freeze" if config.trainable is None else "trainable"
    named = dict(model.named_parameters())
    for pattern in unmatched(config.trainable or config.freeze or "", list(named)):
        near = difflib.get_close_matches(pattern, named, n=1, cutoff=0.5)
        hint = near[0] if near else next(iter(named))
        raise ConfigError(
            f"{field}: no weight of the model is called {pattern!r}; one is called {hint!r}"
        )
    for name, parameter in named.items():
        parameter.requires_grad = config.learns(name)
    if not any(parameter.requires_grad for parameter in named.values()):
        raise ConfigError(f"{field}: no weight is left that learns")
