"""`python -m drumline_trainer`: train on this machine, or as a rank that a launcher started.

Torch is imported only once a command line holds: a typing error should not cost ten seconds.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import BUCKET_FORMS, ExitCode, checkpoint_place
from drumline_contract.buckets.failures import StoreError
from drumline_contract.config import ConfigError, TrainerConfig
from drumline_contract.layout_validation import validated_layout
from drumline_planner.auto import is_auto
from drumline_trainer.command_line import add_configuration, as_file, configured, quiet_torch
from drumline_trainer.launch.launchers import LaunchedRank, RankProgram, detect_launcher
from drumline_trainer.launch.preload import preload
from drumline_trainer.model_commands import (
    checkpoints,
    data,
    export,
    generate,
    import_weights,
)
from drumline_trainer.node_check.options import CheckOptions


def main(arguments: list[str] | None = None) -> int:
    """Run a command; `train` where none is named. Returns an exit code of the contract."""
    words = sys.argv[1:] if arguments is None else arguments
    # Options without a command train, so that launchers need no command.
    name = words[0] if words and words[0] in COMMANDS else ""
    command = COMMANDS[name or "train"]
    try:
        return command(words[1:] if name else words)
    # Errors of the user are one line. All other errors keep their stack trace.
    except ConfigError as error:
        sys.stderr.write(f"drumline_trainer: {error}\n")
        return ExitCode.CONFIG
    except StoreError as error:
        sys.stderr.write(f"drumline_trainer: {error}\n")
        return ExitCode.STORAGE if error.may_come_back else ExitCode.APPLICATION


def train(arguments: list[str]) -> int:
    """Train, from the newest checkpoint where there is one."""
    options = _train_parser().parse_args(arguments)
    config = configured(options.config, preset=options.preset, settings=options.set)
    started = started_as(options.ranks)
    # Phase 1: errors that need no torch, before it is imported.
    if not is_auto(config):  # else each rank chooses one, once it has seen its device
        validated_layout(config, world_size=_world_size(started))
    if options.metrics_file is not None and not options.metrics_file.parent.is_dir():
        raise ConfigError(f"--metrics-file: {options.metrics_file.parent} is not a folder")
    # Phase 2: the work of a rank, which forked and launched ranks share.
    work = partial(
        _train_rank,
        config=config,
        checkpoints=options.checkpoint_folder,
        losses_file=options.metrics_file,
    )
    return _run(work, started, config=config)


def check_nodes(arguments: list[str]) -> int:
    """Check what each node computes, remembers and sends, and print the verdicts as JSON."""
    options = CheckOptions.parse(arguments)
    return _run(partial(_check_rank, options=options), started_as(options.ranks))


def rehearse(arguments: list[str]) -> int:
    """Train the smallest slice of a run for three steps here, and measure what it holds."""
    parser = argparse.ArgumentParser(prog="drumline_trainer rehearse", description=rehearse.__doc__)
    add_configuration(parser)
    parser.add_argument("--of-ranks", type=int, required=True, help="ranks of the whole run")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args(arguments)
    config = configured(options.config, preset=options.preset, settings=options.set)
    # The layout of the whole run is checked, although only a slice is trained.
    layout = validated_layout(config, world_size=options.of_ranks)
    quiet_torch()
    from drumline_trainer.rank import rehearsal  # noqa: PLC0415 - torch

    try:
        # Only writing the result can fail this way.
        return rehearsal.rehearse(config, layout, target=options.out)
    except OSError as error:
        raise ConfigError(f"{options.out}: {error.strerror}") from error


def show_configuration(arguments: list[str]) -> int:
    """Print the whole configuration, defaults included, as a file for --config."""
    parser = argparse.ArgumentParser(
        prog="drumline_trainer config", description=show_configuration.__doc__
    )
    add_configuration(parser)
    options = parser.parse_args(arguments)
    config = configured(options.config, preset=options.preset, settings=options.set)
    sys.stdout.write(as_file(config))
    return ExitCode.OK


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "check-nodes": check_nodes,
    "rehearse": rehearse,
    "export": export,
    "generate": generate,
    "checkpoints": checkpoints,
    "import": import_weights,
    "config": show_configuration,
    "data": data,
}


def started_as(ranks: int | None) -> LaunchedRank | int:
    """Return the rank that a launcher made of this process, or the number of ranks to fork here.

    Args:
        ranks: from the command line. It overrides a launcher of one process, such as an interactive
            job.

    Raises:
        ConfigError: the launcher started another number of ranks, or its variables do not fit.
    """
    asked = 1 if ranks is None else ranks
    if asked < 1:
        raise ConfigError(f"ranks: must be at least 1, not {asked}")
    rank = detect_launcher(os.environ)
    # An interactive job of Slurm has one task. The user may fork several ranks in it.
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
    quiet_torch()
    from drumline_trainer.launch import local  # noqa: PLC0415 - torch

    if isinstance(started, int):
        # Forked ranks share what is imported here. A launched rank imports it alone.
        if config is not None:
            preload(config, ranks=started)
        return local.fork_ranks(work, ranks=started)
    return local.run_launched_rank(work, launched=started)


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


def _check_rank(placement: Placement, *, options: CheckOptions) -> int:
    from drumline_trainer.node_check.program import check_rank  # noqa: PLC0415 - torch

    return check_rank(placement, options=options)


def _train_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="drumline_trainer",
        description=f"{train.__doc__} Other commands: {', '.join(list(COMMANDS)[1:])}.",
    )
    add_configuration(parser)
    parser.add_argument("--ranks", type=int, help="processes on this machine, without a launcher")
    place = f"save here and resume from here: a folder, {BUCKET_FORMS}"
    parser.add_argument("--checkpoint-folder", type=checkpoint_place, help=place)
    parser.add_argument("--metrics-file", type=Path, help="every step's loss as JSON lines")
    return parser


def leave(code: int) -> NoReturn:
    """End this process with what it printed, and without the interpreter's own clean-up.

    That ends Python's threads inside of torch's C++, which now and then aborts a process whose work
    is done ("terminate called without an active exception"): a launcher then reports a failed run.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            # A closed pipe must not turn a finished run into a failed one.
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        leave(main())
    except KeyboardInterrupt:
        sys.stderr.write("drumline_trainer: interrupted; what was checkpointed is kept\n")
        # The shell's convention: 128 and the number of the signal.
        leave(128 + signal.SIGINT)
