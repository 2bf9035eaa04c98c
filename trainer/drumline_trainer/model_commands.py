"""Commands about what was learned: `export`, `generate`, `checkpoints`; `import`, `data` before it.

Every place is a folder of this machine or of a bucket. Torch is imported once a command line holds.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from drumline_contract import BUCKET_FORMS, HUB_SCHEME, SOURCE_FORMS, ExitCode
from drumline_contract.buckets.path import AnyPath, any_path
from drumline_contract.config import ConfigError, TrainerConfig
from drumline_contract.shapes.hugging_face import model_folder
from drumline_trainer.command_line import add_configuration, as_file, configured, quiet_torch

# torch, which a command line that does not hold must not wait for
if TYPE_CHECKING:
    from drumline_trainer.checkpoint.storage import StepFiles

_CHECKPOINT = f"a step-... folder, or that of a run for its newest step; or {BUCKET_FORMS}"
_FOLDER = f"a folder, or {BUCKET_FORMS}"
_MODEL = f"a folder, {SOURCE_FORMS}"


def export(arguments: list[str]) -> int:
    """Write a checkpoint's weights as Hugging Face's transformers reads them.

    The configuration is the checkpoint's own; what a command line says stands above it.
    """
    parser = argparse.ArgumentParser(prog="drumline_trainer export", description=export.__doc__)
    parser.add_argument("checkpoint", help=_CHECKPOINT)
    parser.add_argument("target", help=f"{_FOLDER}: what to write")
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
    add_configuration(parser)
    # The command line is parsed before torch is imported: a typing error costs no ten seconds.
    options = parser.parse_args(arguments)
    import torch  # noqa: PLC0415 - torch

    from drumline_trainer.export import (  # noqa: PLC0415 - torch
        export_adapters,
        export_checkpoint,
    )

    dtype, average = getattr(torch, options.dtype), options.average
    if options.target.startswith(HUB_SCHEME):
        raise ConfigError("target: nothing is written to the Hugging Face Hub; name a folder")
    target = _path(options.target)

    # `_with_checkpoint` opens the checkpoint. Its configuration lies under that of the command
    # line.
    def work(files: StepFiles, config: TrainerConfig) -> None:
        if options.adapter:
            export_adapters(files, config, target, dtype=dtype, average=average, print_line=print)
        else:
            export_checkpoint(files, config, target, dtype=dtype, average=average, print_line=print)

    return _with_checkpoint(options, work)


def generate(arguments: list[str]) -> int:
    """Print what a checkpoint's model says after a prompt: a look at what it has learned."""
    parser = argparse.ArgumentParser(prog="drumline_trainer generate", description=generate.__doc__)
    parser.add_argument("checkpoint", help=_CHECKPOINT)
    parser.add_argument("prompt", help="what comes before")
    parser.add_argument("--chat", action="store_true", help="by the chat template, as a user's")
    parser.add_argument("--tokens", type=int, default=128, help="at most so many (128)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the likeliest (0)")
    add_configuration(parser)
    options = parser.parse_args(arguments)
    quiet_torch()
    from drumline_trainer.data.codec import codec_of  # noqa: PLC0415 - numpy
    from drumline_trainer.generate import Sampling, answer  # noqa: PLC0415 - torch

    def work(files: StepFiles, config: TrainerConfig) -> None:
        text = answer(
            files,
            config,
            options.prompt,
            codec=codec_of(config, chat=options.chat),
            sampling=Sampling(
                tokens=options.tokens, temperature=options.temperature, seed=config.seed
            ),
        )
        sys.stdout.write(f"{text}\n")

    return _with_checkpoint(options, work)


def checkpoints(arguments: list[str]) -> int:
    """List a run's committed checkpoints, newest first. Damaged ones are marked."""
    parser = argparse.ArgumentParser(
        prog="drumline_trainer checkpoints", description=checkpoints.__doc__
    )
    parser.add_argument("run", help=f"{_FOLDER}: where the run saves")
    parser.add_argument("--verify", action="store_true", help="read all files, and their digests")
    options = parser.parse_args(arguments)
    quiet_torch()
    from drumline_trainer.checkpoint.named import list_checkpoints  # noqa: PLC0415 - torch

    return _reading(
        options.run, lambda: list_checkpoints(options.run, verify=options.verify, write=print)
    )


def import_weights(arguments: list[str]) -> int:
    """Check a folder as Hugging Face lays it out, and write a configuration that begins from it."""
    parser = argparse.ArgumentParser(
        prog="drumline_trainer import", description=import_weights.__doc__
    )
    parser.add_argument("folder", help=f"{_MODEL}: config.json and safetensors")
    parser.add_argument("target", type=Path, help="JSON file to write, for --config")
    add_configuration(parser)
    options = parser.parse_args(arguments)
    from drumline_trainer.models.hugging_face import check_hugging_face  # noqa: PLC0415 - torch

    # The loader logs weights that it leaves out. The command shows these lines.
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # what is left out or begins anew
    # A relative folder would be lost when the configuration is used elsewhere.
    named = options.folder if "://" in options.folder else str(Path(options.folder).resolve())
    folder = _path(named)
    under = {"model_from": named}
    config = configured(options.config, preset=options.preset, settings=options.set, under=under)
    # Weights are checked by names and shapes, so at most a few rows are read.
    check_hugging_face(folder, config.model)
    try:
        options.target.write_text(as_file(config))
    except OSError as error:
        raise ConfigError(f"{options.target}: {error.strerror}") from error
    return ExitCode.OK


def data(arguments: list[str]) -> int:
    """Show how a run would read records: counts, skipped records, and the first tokens."""
    parser = argparse.ArgumentParser(prog="drumline_trainer data", description=data.__doc__)
    parser.add_argument("action", choices=("show",))
    parser.add_argument(
        "source", help="a file of records or text, a folder of them, or hf://datasets/ORG/NAME"
    )
    parser.add_argument("--model", required=True, help=f"{_MODEL}: the model's, with a tokenizer")
    parser.add_argument("--pattern", default="**/*", help="files of a folder (**/*)")
    parser.add_argument("--field", default="text", help="of records that are texts (text)")
    parser.add_argument("--chat-template", help="a file, or the name of one of the model's")
    parser.add_argument("--sequence-length", type=int, help="count what is longer than that")
    parser.add_argument("--color", action="store_true", help="in the colours of a terminal")
    options = parser.parse_args(arguments)
    from drumline_trainer.data.corpus import local_source  # noqa: PLC0415 - numpy
    from drumline_trainer.data.show import ShowOptions, show  # noqa: PLC0415 - numpy

    # A template is a file or the name of one in the model's folder. Files are made absolute.
    template = options.chat_template
    if template is not None and Path(template).is_file():
        template = str(Path(template).resolve())
    asked = ShowOptions(
        source=Path(local_source(options.source)),
        model=_path(options.model),
        pattern=options.pattern,
        field=options.field,
        chat_template=template,
        sequence_length=options.sequence_length,
        color=options.color,
    )
    for line in show(asked):
        sys.stdout.write(f"{line}\n")
    return ExitCode.OK


def _with_checkpoint(
    options: argparse.Namespace, work: Callable[[StepFiles, TrainerConfig], None]
) -> int:
    """Call it with the checkpoint of a command line, and the configuration above its own."""
    from drumline_trainer.checkpoint.named import named_checkpoint  # noqa: PLC0415 - torch
    from drumline_trainer.export import trained_with  # noqa: PLC0415 - torch

    # Everything that reads storage is in here, so that its errors are reported alike.
    def reading() -> None:
        files = named_checkpoint(options.checkpoint)
        config = configured(
            options.config,
            preset=options.preset,
            settings=options.set,
            under=trained_with(files),
        )
        work(files, config)

    return _reading(options.checkpoint, reading)


def _reading(place: str, work: Callable[[], None]) -> int:
    """Call what reads checkpoints there; why it cannot is a line, and the kind an exit code."""
    from drumline_trainer.checkpoint.errors import CheckpointError  # noqa: PLC0415 - torch
    from drumline_trainer.rank.exit_codes import exit_code_of  # noqa: PLC0415 - torch

    try:
        work()
    except CheckpointError as error:
        sys.stderr.write(f"drumline_trainer: {place}: {error}\n")
        return exit_code_of(error)
    return ExitCode.OK


def _path(text: str) -> AnyPath:
    try:
        return model_folder(text) if text.startswith(HUB_SCHEME) else any_path(text)
    except ValueError as error:
        raise ConfigError(str(error)) from error
