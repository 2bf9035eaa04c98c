"""The trainer without Kubernetes: the command line, torchrun, and what heartbeats say."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from torch.distributed.run import main as torchrun

from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_contract import ExitCode
from drumline_contract.config import TrainerConfig
from drumline_trainer.__main__ import main
from drumline_trainer.metrics.losses import read_losses
from tests.gloo.configs import small
from tests.gloo.gang import REPOSITORY, GangStarter
from tests.gloo.jobs import run_program, train_rank
from tests.gloo.stored import same_bits, whole_tensors

pytestmark = pytest.mark.extended(keep=1)

Program = Callable[[list[str]], int | None]
"""Takes the command line, gives the exit code."""
OURS = ("--ranks", "2")
THEIRS = ("--standalone", "--nproc-per-node", "2", "-m", "drumline_trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a program ended and what it printed."""

    code: int | None
    output: str
    errors: str


def ran(
    program: Program, *options: str, gangs: GangStarter, config: TrainerConfig, folder: Path
) -> Done:
    """A program of two ranks that train into a folder, forked: torch is long to import."""
    with TemporaryDirectory() as notes:
        file, output, errors = (Path(notes, name) for name in ("config.json", "output", "errors"))
        file.write_text(json.dumps(config.to_dict()))
        arguments = [*options, "--config", str(file), "--checkpoint-folder", str(folder)]
        task = (program, arguments, output, errors)
        process = gangs.context.Process(target=run_program, args=task)
        process.start()
        process.join()
        return Done(code=process.exitcode, output=output.read_text(), errors=errors.read_text())


def test_our_launcher_and_torchrun_train_the_same_model(gangs: GangStarter, tmp_path: Path) -> None:
    config = small(tmp_path)
    ours = ran(main, *OURS, gangs=gangs, config=config, folder=tmp_path / "ours")
    assert ours.code == 0, ours.errors
    pattern = r"step (5|10)/10  loss \d\.\d{3}  grad [\d.]+  [\d.]+[kM]? tok/s  eta \d:\d\d"
    lines = ours.output.splitlines()
    assert [bool(re.fullmatch(pattern, line)) for line in lines if "loss" in line] == [True, True]
    *rest, bottleneck, figures = [line for line in lines if "loss" not in line]
    saved = [line for line in rest if not line.startswith("the checkpoint of step")]  # disk is slow
    assert [line.partition(":")[0] for line in saved] == [
        f"checkpoint of step {step}" for step in (4, 8, 10)
    ]
    assert bottleneck.startswith("bottleneck: ")
    assert figures == f"figures: {tmp_path / 'ours' / 'metrics'}"
    theirs = ran(torchrun, *THEIRS, gangs=gangs, config=config, folder=tmp_path / "theirs")
    assert theirs.code == 0, f"{theirs.output}\n{theirs.errors}"
    folders = [tmp_path / name / "step-00000010" for name in ("ours", "theirs")]
    assert same_bits(*map(whole_tensors, folders))


def test_the_launchers_exit_code_is_the_ranks(gangs: GangStarter, tmp_path: Path) -> None:
    config = small(tmp_path, data={"source": str(tmp_path / "absent")})
    done = ran(main, *OURS, gangs=gangs, config=config, folder=tmp_path / "x")
    assert done.code == ExitCode.CONFIG
    assert "data.source" in done.errors
    assert "Traceback" not in done.errors


def test_a_checkpoint_folder_that_cannot_be_used_is_one_line(
    gangs: GangStarter, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    done = ran(main, *OURS, gangs=gangs, config=small(tmp_path), folder=tmp_path / "file" / "x")
    assert done.code == ExitCode.APPLICATION
    assert f"checkpoint folder {tmp_path / 'file' / 'x'}: Not a directory" in done.errors
    assert "Traceback" not in done.errors


@pytest.mark.parametrize("wrong", ["link", "lock"])
def test_a_checkpoint_folder_that_cannot_be_claimed_names_what_is_wrong(
    gangs: GangStarter, tmp_path: Path, wrong: str
) -> None:
    folder = tmp_path / "x"
    if wrong == "link":
        folder.symlink_to(tmp_path / "absent")
        reason = f"checkpoint folder {folder}: a file, or a link to a missing folder, has this name"
    else:
        (folder / "lock").mkdir(parents=True)
        reason = f"checkpoint folder {folder}: Is a directory ({folder / 'lock'})"
    done = ran(main, *OURS, gangs=gangs, config=small(tmp_path), folder=folder)
    assert done.code == ExitCode.APPLICATION
    assert reason in done.errors


def test_a_loss_that_is_not_finite_is_one_line(gangs: GangStarter, tmp_path: Path) -> None:
    config = small(tmp_path, optimizer={"learning_rate": 1e30})
    done = ran(main, *OURS, gangs=gangs, config=config, folder=tmp_path / "x")
    assert done.code == ExitCode.APPLICATION
    assert re.search(
        r"^\[rank \d\] step \d: the loss is .*; lower optimizer", done.errors, re.MULTILINE
    )
    assert "Traceback" not in done.errors


@pytest.mark.gloo
def test_an_interrupt_ends_all_ranks_and_says_so_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(small(tmp_path, steps=1_000_000).to_dict()))
    launcher = subprocess.Popen(
        [sys.executable, "-m", "drumline_trainer", "--ranks", "2", "--config", str(file)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "trainer")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell that runs the tests in the background has it ignored, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert launcher.stdout is not None
    assert "step 5/" in launcher.stdout.readline()
    os.killpg(launcher.pid, signal.SIGINT)  # as a terminal does: the ranks get it too
    _, errors = launcher.communicate()  # ends when no rank holds the pipes any more
    assert launcher.returncode == 128 + signal.SIGINT
    assert errors == "drumline_trainer: interrupted; what was checkpointed is kept\n"


def test_heartbeats_tell_the_whole_story(gangs: GangStarter, tmp_path: Path) -> None:
    config = small(tmp_path, checkpoint={"asynchronous": False})  # so each moment is certain
    completed = gangs.run(
        train_rank,
        config,
        None,
        world_size=2,
        generation=3,
        attempt=1,
        checkpoint_folder=tmp_path / "checkpoints",
    )
    losses = read_losses(tmp_path / "checkpoints" / "metrics.jsonl")
    for rank, lines in enumerate(completed):
        beats = [Heartbeat.from_json(line) for line in lines if line.startswith("{")]
        assert {(b.generation, b.attempt, b.rank) for b in beats} == {(3, 1, rank)}
        steps = [Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
        # a beat for each piece of what is restored or saved, however many there are
        assert [phase for phase, _ in groupby(b.phase for b in beats)] == [
            Phase.STARTING,
            Phase.RESTORING,
            *(steps * 4 + [Phase.CHECKPOINT]) * 2,
            *(steps * 2 + [Phase.CHECKPOINT]),
            Phase.DONE,
        ]
        assert [b.step for b in beats] == sorted(b.step for b in beats)
        final = beats[-1]
        assert (final.step, final.checkpoint_step, final.loss) == (10, 10, losses[10])
        assert len(final.checkpoint_digest) == 64
        assert None not in (final.tokens_per_second, final.step_seconds, final.checkpoint_seconds)
        assert final.mfu is None  # no figure for this device
    assert (
        len([line for line in completed[1] if not line.startswith("{")]) == 0
    )  # rank 0 alone speaks
