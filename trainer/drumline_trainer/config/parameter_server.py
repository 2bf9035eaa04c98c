"""The section `parallelism.server`: parameter servers and their staleness bound."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drumline_trainer.config.bounds import Ranks, Steps
from drumline_trainer.config.errors import require_not_negative, require_positive


class ServerMode(StrEnum):
    """When a server applies what workers push."""

    SYNCHRONOUS = "synchronous"
    """Once in a step, the sum of all: as ddp."""
    ASYNCHRONOUS = "asynchronous"
    """Each push when it comes, at most `max_staleness` steps apart (Ho et al. 2013)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """With data_parallel parameter-server: how many servers, and when they apply what comes."""

    servers: Ranks = 1
    """Among which the weights and the optimizer's state are shared out by rows; threads of ranks
    spread evenly."""
    mode: ServerMode = ServerMode.SYNCHRONOUS
    max_staleness: Steps = 2
    """Asynchronous only: steps that the fastest worker may be ahead of the slowest."""
    copies_per_node: Ranks = 1
    """Above 1 it is hierarchical: so many neighbouring copies of the model, those of a node, sum
    their gradients first, and one of them pushes and pulls for all."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "parallelism.server.servers": self.servers,
                "parallelism.server.copies_per_node": self.copies_per_node,
            }
        )
        require_not_negative({"parallelism.server.max_staleness": self.max_staleness})
