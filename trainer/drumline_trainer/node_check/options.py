"""The command line of `check-nodes`. No torch."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from drumline_contract.config import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Sizes of the checks. None: chosen for the device."""

    ranks: int | None = None
    """Processes to fork here, where no launcher started this one."""
    matrix: int | None = None
    """Rows and columns."""
    memory: int | None = None
    """Bytes that are written and read."""
    message: int | None = None
    """Bytes that two ranks exchange."""
    repeats: int = 5
    """Number of repeats. The median is used."""
    device: str | None = None
    """`cpu` checks the processors even if there are GPUs. None: the device of a training run."""

    @classmethod
    def parse(cls, arguments: list[str]) -> CheckOptions:
        """Read the command line. Raises ConfigError."""
        parser = argparse.ArgumentParser(prog="drumline_trainer check-nodes")
        parser.add_argument("--ranks", type=int, help="processes here, without a launcher")
        parser.add_argument("--matrix", type=int, help="rows and columns of the products")
        parser.add_argument("--memory", type=int, metavar="BYTES", help="written and read")
        parser.add_argument("--message", type=int, metavar="BYTES", help="exchanged by two ranks")
        parser.add_argument("--repeats", type=int, default=5, help="of which the median counts")
        parser.add_argument("--device", choices=("cpu", "gpu"), help="default: as for training")
        options = cls(**vars(parser.parse_args(arguments)))
        for name in ("matrix", "memory", "message", "repeats"):
            value = getattr(options, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name}: must be at least 1, not {value}")
        return options
