"""Processes that a launcher starts find each other by its variables alone, and train."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from drumline_contract import ExitCode
from drumline_trainer.__main__ import main
from drumline_trainer.metrics.losses import read_losses
from drumline_trainer.recovery.rendezvous_store import listen
from tests.gloo.configs import small
from tests.gloo.gang import REPOSITORY, GangStarter
from tests.gloo.jobs import run_program

pytestmark = pytest.mark.extended(keep=1)

MPIRUN = shutil.which("mpirun")


@contextmanager
def own_port() -> Iterator[str]:
    """One that nobody else is given: bound meanwhile and not listened on, which a store may do."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield str(held.getsockname()[1])


def slurm(rank: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "unreachable",  # all ranks are on one node: nobody asks for it
    }


def start(environment: Mapping[str, str], arguments: list[str], output: Path, errors: Path) -> None:
    """The command line under these variables."""
    os.environ.update(environment)
    run_program(main, arguments, output, errors)


def arguments_for(folder: Path) -> list[str]:
    file = folder / "config.json"
    file.write_text(json.dumps(small(folder).to_dict()))
    return ["--config", str(file), "--metrics-file", str(folder / "losses")]


def two_ranks(gangs: GangStarter, folder: Path, arguments: list[list[str]]) -> list[int | None]:
    """Exit codes of two ranks that Slurm might have started, each with its own command line."""
    with own_port() as port:
        processes = [
            gangs.context.Process(
                target=start,
                args=(
                    slurm(rank) | {"DRUMLINE_MASTER_PORT": port},
                    arguments[rank],
                    folder / f"output-{rank}",
                    folder / f"errors-{rank}",
                ),
            )
            for rank in range(2)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    return [process.exitcode for process in processes]


def test_two_ranks_meet(gangs: GangStarter, tmp_path: Path) -> None:
    codes = two_ranks(gangs, tmp_path, [arguments_for(tmp_path)] * 2)
    assert codes == [0, 0], (tmp_path / "errors-0").read_text()
    assert len(read_losses(tmp_path / "losses")) == 10
    assert "step 10/10" in (tmp_path / "output-0").read_text()
    assert not (tmp_path / "output-1").read_text()


def test_ranks_that_were_told_different_things_do_not_train(
    gangs: GangStarter, tmp_path: Path
) -> None:
    arguments = arguments_for(tmp_path)
    codes = two_ranks(gangs, tmp_path, [arguments, [*arguments, "--set", "seed=9"]])
    assert codes == [ExitCode.CONFIG] * 2
    for rank in range(2):
        output = (tmp_path / f"errors-{rank}").read_text()
        assert "rank 1 has configuration=" in output
        assert " and rank 0 has configuration=" in output


def test_rank_0_says_where_it_cannot_listen(gangs: GangStarter, tmp_path: Path) -> None:
    with listen(0, address="127.0.0.1") as taken:
        port = str(taken.getsockname()[1])
        files = (tmp_path / "output", tmp_path / "errors")
        variables = slurm(0) | {"DRUMLINE_MASTER_PORT": port}
        task = (variables, arguments_for(tmp_path), *files)
        process = gangs.context.Process(target=start, args=task)
        process.start()
        process.join()
    assert process.exitcode == ExitCode.CONFIG
    assert files[1].read_text() == (
        f"drumline_trainer: rank 0 cannot serve the store at 127.0.0.1:{port}: Address already in"
        " use; MASTER_ADDR must name its host, and DRUMLINE_MASTER_PORT chooses another port\n"
    )


@pytest.mark.gloo
@pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun on this machine")
def test_mpirun_starts_ranks(tmp_path: Path) -> None:
    assert MPIRUN is not None
    variables = {
        "PYTHONPATH": str(REPOSITORY / "trainer"),
        # Debian's is Open MPI: it refuses root, and more ranks than cores, unless told
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    with own_port() as port:
        done = subprocess.run(
            [MPIRUN, "-n", "2", sys.executable, "-m", "drumline_trainer", *arguments_for(tmp_path)],
            env={**os.environ, **variables, "DRUMLINE_MASTER_PORT": port},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 10/10") == 1
    assert len(read_losses(tmp_path / "losses")) == 10
