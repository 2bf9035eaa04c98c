from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

jax = pytest.importorskip("jax", reason="make test-all WHAT=libraries")

import jax.numpy as jnp  # noqa: E402

from drumline_client.adapters.jax import step_done  # noqa: E402
from drumline_client.environment import rank_place  # noqa: E402
from drumline_client.run import Run  # noqa: E402
from drumline_client.wire import PartSaved  # noqa: E402
from drumline_contract import launcher_environment  # noqa: E402
from tests.libraries.notices import run_that_saves  # noqa: E402
from tests.played_agent import played_agent  # noqa: E402

STEPS = 6
ROOT = Path(__file__).parents[2]
PROCESS = """
from drumline_client.adapters.jax import initialize
run = initialize()
import jax
from jax.experimental import multihost_utils
ranks = multihost_utils.process_allgather(jax.numpy.array([run.rank]))
print("ranks", ranks.reshape(-1).tolist(), "world", run.world_size)
"""


@pytest.mark.parametrize("launch", ["PerPod", "PerGpu"])
def test_the_processes_of_a_job_find_each_other(launch: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def start(index: int) -> subprocess.Popen[str]:
        variables = launcher_environment(
            nodes=2, index=index, gpus=2, host="127.0.0.1", port=port, hostfile="/hostfile"
        )
        if launch == "PerGpu":
            of_rank = {"RANK": index, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": port}
            variables = {name: str(value) for name, value in of_rank.items()}
            variables["MASTER_ADDR"] = "127.0.0.1"
        inherited = {name: value for name, value in os.environ.items() if "proxy" not in name}
        return subprocess.Popen(
            [sys.executable, "-c", PROCESS],
            env={**inherited, **variables, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT / "trainer",
        )

    outputs = [process.communicate()[0] for process in [start(0), start(1)]]  # Gloo prints, too
    assert [output.splitlines()[-1] for output in outputs] == ["ranks [0, 1] world 2"] * 2


def train(folder: Path, run: Run) -> dict[int, float]:
    """The losses of the steps that were done. Momentum: all of the state counts."""
    saved = sorted(folder.glob("step-*.npz"))
    weights, speed, begin = jnp.ones(4), jnp.zeros(4), 0
    if saved:
        stored = jnp.load(saved[-1])
        weights, speed, begin = stored["weights"], stored["speed"], int(stored["step"])
    losses: dict[int, float] = {}

    def save(step: int) -> str:
        path = folder / f"step-{step}.npz"
        jnp.savez(path, weights=weights, speed=speed, step=step)
        return str(path)

    @jax.jit
    def loss_of(weights: jax.Array, row: jax.Array) -> jax.Array:
        return (weights @ row) ** 2

    for step in range(begin, STEPS):
        row = jax.random.normal(jax.random.key(step), (4,))
        loss, slope = jax.value_and_grad(loss_of)(weights, row)
        speed = 0.9 * speed + slope
        weights = weights - 0.01 * speed
        losses[step + 1] = float(loss)
        if step_done(run, step + 1, save, loss=loss):
            break
    return losses


def test_a_notice_is_saved_at_its_step_and_nothing_is_lost(tmp_path: Path) -> None:
    outside = Run(None, place=rank_place({}))
    (tmp_path / "undisturbed").mkdir()
    (tmp_path / "run").mkdir()
    undisturbed = train(tmp_path / "undisturbed", outside)
    with played_agent() as agent:
        stopped = train(tmp_path / "run", run_that_saves(agent, step=3))
        path = str(tmp_path / "run" / "step-3.npz")
        assert agent.wait_for(PartSaved) == PartSaved(step=3, path=path)
    resumed = train(tmp_path / "run", outside)
    assert set(stopped) == {1, 2, 3}
    assert stopped | resumed == undisturbed
    assert set(resumed) == {4, 5, 6}
