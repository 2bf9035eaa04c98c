"""`python -m drumline_trainer`: train on this machine, or as a rank that a launcher started.

Torch is imported only once a command line holds: a typing error should not cost ten seconds.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from drumline_trainer.collectives.options import BenchOptions
from drumline_trainer.config import MODEL_PRESETS, ConfigError, TrainerConfig, merge
from drumline_trainer.contract import BUCKET_FORMS, ExitCode, checkpoint_place
from drumline_trainer.launch.launchers import LaunchedRank, RankProgram, detect_launcher
from drumline_trainer.launch.preload import preload
from drumline_trainer.layout_validation import validated_layout
from drumline_trainer.node_check.options import CheckOptions
from drumline_trainer.planner.auto import is_auto
from drumline_trainer.rank_protocol.placement import Placement
from drumline_trainer.shapes.hugging_face import with_model_of_folder


def main(arguments: list[str] | None = None) -> int:
    """Run a command; `train` where none is named. Returns an exit code of the contract."""
    words = sys.argv[1:] if arguments is None else arguments
    name = words[0] if words and words[0] in COMMANDS else ""
    command = COMMANDS[name or "train"]
    try:
        return command(words[1:] if name else words)
    except ConfigError as error:
        sys.stderr.write(f"drumline_trainer: {error}\n")
        return ExitCode.CONFIG


def train(arguments: list[str]) -> int:
    """Train, from the newest checkpoint where there is one."""
    options = _train_parser().parse_args(arguments)
    config = configured(options.config, preset=options.preset, settings=options.set)
    started = started_as(options.ranks)
    if not is_auto(config):  # else each rank chooses one, once it has seen its device
        validated_layout(config, world_size=_world_size(started))
    if options.metrics_file is not None and not options.metrics_file.parent.is_dir():
        raise ConfigError(f"--metrics-file: {options.metrics_file.parent} is not a folder")
    work = partial(
        _train_rank,
        config=config,
        checkpoints=options.checkpoint_folder,
        losses_file=options.metrics_file,
    )
    return _run(work, started, config=config)


def bench_collectives(arguments: list[str]) -> int:
    """Measure collectives by size over every axis of a layout."""
    options = BenchOptions.parse(arguments)
    started = started_as(options.ranks)
    options.layout(world_size=_world_size(started))  # raises now what every rank would
    return _run(partial(_bench_rank, options=options), started)


def check_nodes(arguments: list[str]) -> int:
    """Check what each node computes, remembers and sends, and print the verdicts as JSON."""
    options = CheckOptions.parse(arguments)
    return _run(partial(_check_rank, options=options), started_as(options.ranks))


def rehearse(arguments: list[str]) -> int:
    """Train the smallest slice of a run for three steps here, and measure what it holds."""
    parser = argparse.ArgumentParser(prog="drumline_trainer rehearse", description=rehearse.__doc__)
    _add_configuration(parser)
    parser.add_argument("--of-ranks", type=int, required=True, help="ranks of the whole run")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args(arguments)
    config = configured(options.config, preset=options.preset, settings=options.set)
    layout = validated_layout(config, world_size=options.of_ranks)
    _quiet_torch()
    from drumline_trainer.rank import rehearsal  # noqa: PLC0415 - torch

    try:
        return rehearsal.rehearse(config, layout, target=options.out)
    except OSError as error:
        raise ConfigError(f"{options.out}: {error.strerror}") from error


def export(arguments: list[str]) -> int:
    """Write a checkpoint's weights as Hugging Face's transformers reads them.

    The configuration is the checkpoint's own; what a command line says stands above it.
    """
    parser = argparse.ArgumentParser(prog="drumline_trainer export", description=export.__doc__)
    parser.add_argument("checkpoint", type=Path, help="a step-... folder")
    parser.add_argument("target", type=Path, help="folder to write")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="type of the tensors in the files",
    )
    parser.add_argument(
        "--adapter", action="store_true", help="the adapters alone, as the library peft reads them"
    )
    parser.add_argument(
        "--average", action="store_true", help="the average of the weights (average_decay)"
    )
    _add_configuration(parser)
    options = parser.parse_args(arguments)
    import torch  # noqa: PLC0415 - torch

    from drumline_trainer.checkpoint.errors import CorruptCheckpointError  # noqa: PLC0415 - torch
    from drumline_trainer.export import (  # noqa: PLC0415 - torch
        export_adapters,
        export_checkpoint,
        trained_with,
    )

    try:
        config = configured(
            options.config,
            preset=options.preset,
            settings=options.set,
            under=trained_with(options.checkpoint),
        )
        dtype = getattr(torch, options.dtype)
        where, average = (options.checkpoint, config, options.target), options.average
        if options.adapter:
            export_adapters(*where, dtype=dtype, average=average)
        else:
            export_checkpoint(*where, dtype=dtype, average=average, print_line=print)
    except CorruptCheckpointError as error:
        sys.stderr.write(f"drumline_trainer: {options.checkpoint}: {error}\n")
        return ExitCode.CORRUPT_CHECKPOINT
    return ExitCode.OK


def generate(arguments: list[str]) -> int:
    """Print what a checkpoint's model says after a prompt: a look at what it has learned."""
    parser = argparse.ArgumentParser(prog="drumline_trainer generate", description=generate.__doc__)
    parser.add_argument("checkpoint", type=Path, help="a step-... folder")
    parser.add_argument("prompt", help="what comes before")
    parser.add_argument("--chat", action="store_true", help="by the chat template, as a user's")
    parser.add_argument("--tokens", type=int, default=128, help="at most so many (128)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the likeliest (0)")
    _add_configuration(parser)
    options = parser.parse_args(arguments)
    _quiet_torch()
    from drumline_trainer.checkpoint.errors import CorruptCheckpointError  # noqa: PLC0415 - torch
    from drumline_trainer.export import trained_with  # noqa: PLC0415 - torch
    from drumline_trainer.generate import Sampling, answer, codec_of  # noqa: PLC0415 - torch

    try:
        config = configured(
            options.config,
            preset=options.preset,
            settings=options.set,
            under=trained_with(options.checkpoint),
        )
        text = answer(
            options.checkpoint,
            config,
            options.prompt,
            codec=codec_of(config, chat=options.chat),
            sampling=Sampling(
                tokens=options.tokens, temperature=options.temperature, seed=config.seed
            ),
        )
    except CorruptCheckpointError as error:
        sys.stderr.write(f"drumline_trainer: {options.checkpoint}: {error}\n")
        return ExitCode.CORRUPT_CHECKPOINT
    sys.stdout.write(f"{text}\n")
    return ExitCode.OK


def import_weights(arguments: list[str]) -> int:
    """Check a folder as Hugging Face lays it out, and write a configuration that begins from it."""
    parser = argparse.ArgumentParser(
        prog="drumline_trainer import", description=import_weights.__doc__
    )
    parser.add_argument("folder", type=Path, help="config.json and safetensors")
    parser.add_argument("target", type=Path, help="JSON file to write, for --config")
    _add_configuration(parser)
    options = parser.parse_args(arguments)
    from drumline_trainer.models.hugging_face import check_hugging_face  # noqa: PLC0415 - torch

    logging.basicConfig(level=logging.INFO, format="%(message)s")  # what is left out or begins anew
    under = {"model_from": str(options.folder.resolve())}
    config = configured(options.config, preset=options.preset, settings=options.set, under=under)
    check_hugging_face(options.folder, config.model)
    try:
        options.target.write_text(_as_file(config))
    except OSError as error:
        raise ConfigError(f"{options.target}: {error.strerror}") from error
    return ExitCode.OK


def show_configuration(arguments: list[str]) -> int:
    """Print the whole configuration, defaults included, as a file for --config."""
    parser = argparse.ArgumentParser(
        prog="drumline_trainer config", description=show_configuration.__doc__
    )
    _add_configuration(parser)
    options = parser.parse_args(arguments)
    config = configured(options.config, preset=options.preset, settings=options.set)
    sys.stdout.write(_as_file(config))
    return ExitCode.OK


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "bench-collectives": bench_collectives,
    "check-nodes": check_nodes,
    "rehearse": rehearse,
    "export": export,
    "generate": generate,
    "import": import_weights,
    "config": show_configuration,
}


def configured(
    file: Path | None,
    *,
    preset: str | None,
    settings: list[str],
    under: dict[str, Any] | None = None,
) -> TrainerConfig:
    """The file's configuration, the preset's model over it, the settings over both.

    What none of them says is as `under` has it. A model that none of them names is that of the
    folder `model_from`.

    Raises:
        ConfigError: unreadable file, malformed setting, or a configuration that cannot work.
    """
    raw: dict[str, Any] = under or {}
    if file is not None:
        try:
            read = json.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file}: {error}") from error
        if not isinstance(read, dict):
            raise ConfigError(f"{file}: must be a JSON object")
        raw = merge(raw, cast("dict[str, Any]", read))
    if preset is not None:
        model = TrainerConfig(model=MODEL_PRESETS[preset]).to_dict()["model"]
        raw = merge(raw, {"model": model})
    for setting in settings:
        raw = merge(raw, _setting(setting))
    return TrainerConfig.from_dict(with_model_of_folder(raw))


def started_as(ranks: int | None) -> LaunchedRank | int:
    """Which rank a launcher made of this process, or how many ranks to fork here.

    Args:
        ranks: what the command line asks for. It stands against a launcher of one process, as an
            interactive job is.

    Raises:
        ConfigError: the launcher started another number of ranks, or its variables do not fit.
    """
    asked = 1 if ranks is None else ranks
    if asked < 1:
        raise ConfigError(f"ranks: must be at least 1, not {asked}")
    rank = detect_launcher(os.environ)
    if rank is None or (rank.world_size == 1 and asked > 1):
        return asked
    if ranks not in (None, rank.world_size):
        raise ConfigError(
            f"--ranks {ranks}: {rank.launcher} has started {rank.world_size}; leave --ranks out"
        )
    return rank


def _world_size(started: LaunchedRank | int) -> int:
    return started if isinstance(started, int) else started.world_size


def _run(
    work: RankProgram, started: LaunchedRank | int, *, config: TrainerConfig | None = None
) -> int:
    _quiet_torch()
    from drumline_trainer.launch import local  # noqa: PLC0415 - torch

    if isinstance(started, int):
        if config is not None:
            preload(config, ranks=started)
        return local.fork_ranks(work, ranks=started)
    return local.run_launched_rank(work, launched=started)


def _quiet_torch() -> None:
    """Read by torch as it is imported.

    Else c10d warns of every address without a name, and the profiler of machines without a GPU.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def _train_rank(
    placement: Placement,
    *,
    config: TrainerConfig,
    checkpoints: Path | str | None,
    losses_file: Path | None,
) -> int:
    from drumline_trainer.rank import rank_main  # noqa: PLC0415 - torch

    placement = placement.saving_to(checkpoints)
    return rank_main(config, placement=placement, losses_file=losses_file)


def _bench_rank(placement: Placement, *, options: BenchOptions) -> int:
    from drumline_trainer.collectives.bench import bench_rank  # noqa: PLC0415 - torch

    return bench_rank(placement, options=options)


def _check_rank(placement: Placement, *, options: CheckOptions) -> int:
    from drumline_trainer.node_check.program import check_rank  # noqa: PLC0415 - torch

    return check_rank(placement, options=options)


def _as_file(config: TrainerConfig) -> str:
    return json.dumps(config.to_dict(), indent=2) + "\n"


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


def _train_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="drumline_trainer",
        description=f"{train.__doc__} Other commands: {', '.join(list(COMMANDS)[1:])}.",
    )
    _add_configuration(parser)
    parser.add_argument("--ranks", type=int, help="processes on this machine, without a launcher")
    place = f"save here and resume from here: a folder, {BUCKET_FORMS}"
    parser.add_argument("--checkpoint-folder", type=checkpoint_place, help=place)
    parser.add_argument("--metrics-file", type=Path, help="every step's loss as JSON lines")
    return parser


def _add_configuration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help="JSON file of a TrainerConfig")
    parser.add_argument("--preset", choices=sorted(MODEL_PRESETS), help="model of this name")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def leave(code: int) -> NoReturn:
    """End this process with what it printed, and without the interpreter's own clean-up.

    That ends Python's threads inside of torch's C++, which now and then aborts a process whose work
    is done ("terminate called without an active exception"): a launcher then reports a failed run.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        leave(main())
    except KeyboardInterrupt:
        sys.stderr.write("drumline_trainer: interrupted; what was checkpointed is kept\n")
        leave(128 + signal.SIGINT)
