"""Ranks that do not wait for each other in every step: parameter servers, local SGD."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drumline_trainer.config.errors import ConfigError, require_not_negative, require_positive


class ServerMode(StrEnum):
    """When a server applies what workers push."""

    SYNCHRONOUS = "synchronous"
    """Once in a step, the sum of all: as ddp."""
    ASYNCHRONOUS = "asynchronous"
    """Each push when it comes, at most `max_staleness` steps apart (Ho et al. 2013)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """With data_parallel parameter-server: how many servers, and when they apply what comes."""

    servers: int = 1
    """Among which the weights and the optimizer's state are shared out by rows; threads of ranks
    spread evenly."""
    mode: ServerMode = ServerMode.SYNCHRONOUS
    max_staleness: int = 2
    """Asynchronous only: steps that the fastest worker may be ahead of the slowest."""
    copies_per_node: int = 1
    """Above 1 it is hierarchical: so many neighbouring copies of the model, those of a node, sum
    their gradients first, and one of them pushes and pulls for all."""

    def __post_init__(self) -> None:
        """Refuse what cannot work. Raises ConfigError."""
        require_positive(
            {
                "parallelism.server.servers": self.servers,
                "parallelism.server.copies_per_node": self.copies_per_node,
            }
        )
        require_not_negative({"parallelism.server.max_staleness": self.max_staleness})


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgdConfig:
    """Copies of the model that train alone and meet now and then (DiLoCo, Douillard et al. 2023).

    With an outer rate of 1 and no momentum it is plain local SGD: weights are averaged.
    """

    every_steps: int = 50
    """Steps from one meeting to the next."""
    outer_learning_rate: float = 0.7
    """Of the step that the copies make together, by the mean of how far each went."""
    outer_momentum: float = 0.9
    """Nesterov's."""

    def __post_init__(self) -> None:
        """Refuse what cannot work. Raises ConfigError."""
        require_positive(
            {
                "parallelism.local_sgd.every_steps": self.every_steps,
                "parallelism.local_sgd.outer_learning_rate": self.outer_learning_rate,
            }
        )
        if not 0 <= self.outer_momentum < 1:
            raise ConfigError(
                "parallelism.local_sgd.outer_momentum: must be at least 0 and below 1, not"
                f" {self.outer_momentum}"
            )
