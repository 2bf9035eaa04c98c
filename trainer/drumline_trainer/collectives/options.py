"""The command line of `bench-collectives`. No torch."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline_trainer.config import ConfigError, ParallelismConfig
from drumline_trainer.config.decoding import decode
from drumline_trainer.layout import Layout

SMALLEST, LARGEST = 1024, 16 * 1024**2
"""Bytes; between them each size is four times the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to measure."""

    ranks: int | None = None
    """Processes to fork here, where no launcher started this one."""
    parallelism: ParallelismConfig
    sizes: tuple[int, ...]
    """Bytes."""
    repeats: int = 7
    json_file: Path | None = None

    @classmethod
    def parse(cls, arguments: list[str]) -> BenchOptions:
        """Read the command line. Raises ConfigError."""
        parsed = _parser().parse_args(arguments)
        if not 0 < parsed.smallest <= parsed.largest:
            raise ConfigError("--smallest: must be at least 1 and at most --largest")
        if parsed.repeats < 1:
            raise ConfigError("--repeats: must be at least 1")
        if parsed.json is not None and not parsed.json.parent.is_dir():
            raise ConfigError(f"--json: {parsed.json.parent} is not a folder")
        sizes = [parsed.smallest]
        while sizes[-1] * 4 <= parsed.largest:
            sizes.append(sizes[-1] * 4)
        return cls(
            ranks=parsed.ranks,
            parallelism=decode(ParallelismConfig, _degrees(parsed.layout), path="layout."),
            sizes=tuple(sizes),
            repeats=parsed.repeats,
            json_file=parsed.json,
        )

    def layout(self, *, world_size: int) -> Layout:
        """The axes to measure. Raises ConfigError: the degrees do not divide the ranks."""
        return Layout.of(self.parallelism, world_size=world_size)


def _degrees(settings: list[str]) -> dict[str, Any]:
    degrees: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--layout {setting}: must be key=value")
        try:
            degrees[key] = json.loads(value)
        except ValueError:
            degrees[key] = value
    return degrees


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="drumline_trainer bench-collectives")
    parser.add_argument("--ranks", type=int, help="processes on this machine, without a launcher")
    parser.add_argument(
        "--layout",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a field of the configuration's `parallelism`, as tensor=2; every axis is measured",
    )
    parser.add_argument("--smallest", type=int, default=SMALLEST, metavar="BYTES")
    parser.add_argument("--largest", type=int, default=LARGEST, metavar="BYTES")
    parser.add_argument("--repeats", type=int, default=7, help="of which the median counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there too")
    return parser
