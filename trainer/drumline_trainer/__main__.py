"""`python -m drumline_trainer`: train on this machine, or as a rank that torchrun started."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from drumline_trainer.config import MODEL_PRESETS, ConfigError, TrainerConfig, merge
from drumline_trainer.contract import ExitCode


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and train. Returns an exit code of the contract."""
    options = _parser().parse_args(arguments)
    try:
        config = configured(options.config, preset=options.preset, settings=options.set)
        config.check_world_size(options.ranks)
        _check_folder_of(options.metrics_file)
    except ConfigError as error:
        sys.stderr.write(f"drumline_trainer: {error}\n")
        return ExitCode.CONFIG
    # read by torch as it is imported: else c10d warns of every address without a name
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # torch is imported only now: a typing error should not cost ten seconds
    from drumline_trainer.launch import launch, torchrun_rank  # noqa: PLC0415

    if "RANK" in os.environ:
        return torchrun_rank(
            config, checkpoint_folder=options.checkpoint_folder, losses_file=options.metrics_file
        )
    return launch(
        config,
        ranks=options.ranks,
        checkpoint_folder=options.checkpoint_folder,
        losses_file=options.metrics_file,
    )


def configured(file: Path | None, *, preset: str | None, settings: list[str]) -> TrainerConfig:
    """The file's configuration, the preset's model over it, the settings over both.

    Raises:
        ConfigError: unreadable file, malformed setting, or a configuration that cannot work.
    """
    raw: dict[str, Any] = {}
    if file is not None:
        try:
            raw = json.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file}: {error}") from error
    if preset is not None:
        model = TrainerConfig(model=MODEL_PRESETS[preset]).to_dict()["model"]
        raw = merge(raw, {"model": model})
    for setting in settings:
        raw = merge(raw, _setting(setting))
    return TrainerConfig.from_dict(raw)


def _setting(text: str) -> dict[str, Any]:
    """`data.sequence_length=64` as nested JSON; a value that is not JSON is a string."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: must be key=value")
    try:
        nested: Any = json.loads(value)
    except ValueError:
        nested = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return nested


def _check_folder_of(metrics_file: Path | None) -> None:
    if metrics_file is not None and not metrics_file.parent.is_dir():
        raise ConfigError(f"--metrics-file: {metrics_file.parent} is not a folder")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="drumline_trainer", description=__doc__)
    parser.add_argument("--config", type=Path, help="JSON file of a TrainerConfig")
    parser.add_argument("--preset", choices=sorted(MODEL_PRESETS), help="model of this name")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--ranks", type=int, default=1, help="processes on this machine")
    parser.add_argument("--checkpoint-folder", type=Path, help="save here and resume from here")
    parser.add_argument("--metrics-file", type=Path, help="every step's loss as JSON lines")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stderr.write("drumline_trainer: interrupted; what was checkpointed is kept\n")
        sys.exit(128 + signal.SIGINT)
