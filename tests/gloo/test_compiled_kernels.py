"""Layers on the kernels that torch's compiler makes for processors, and a start that reads them.

The compiler works once, for seconds: the other tests of compiled layers have a backend that only
records. This one is left out nowhere but on a machine without a C++ compiler.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.rank import run_rank
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter

STEPS = 3


@dataclass(frozen=True)
class Start:
    """What a start of the run did."""

    losses: list[float]
    lines: list[str]
    compiled: int
    """Graphs."""
    read: int
    libraries: int
    """That were compiled."""


def start(
    placement: Placement, pipe: Connection, config: TrainerConfig, machine: str, home: str
) -> None:
    """Train on a machine that has compiled nothing yet."""
    from torch._dynamo.utils import counters  # noqa: PLC0415 - in the rank
    from torch._inductor.cpp_builder import CppBuilder  # noqa: PLC0415 - in the rank

    os.environ |= {"TORCHINDUCTOR_CACHE_DIR": machine, "HOME": home}
    os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"  # else it compiles seven programs to ask
    os.environ.pop("XDG_STATE_HOME", None)
    Path(machine).mkdir()
    losses: list[float] = []
    lines: list[str] = []
    libraries: list[str] = []
    build = CppBuilder.build

    def counted(builder: Any) -> None:
        libraries.append(Path(builder.get_target_file_path()).suffix)
        build(builder)

    def listen(word: Any) -> None:
        if getattr(word, "loss", None) is not None and word.step == len(losses) + 1:
            losses.append(word.loss)

    with patch.object(CppBuilder, "build", counted):
        run_rank(config=config, placement=placement, heartbeat=listen, write=lines.append)
    graphs = counters["inductor"]
    pipe.send(
        Start(
            losses=losses,
            lines=lines,
            compiled=graphs["fxgraph_cache_miss"],
            read=graphs["fxgraph_cache_hit"],
            libraries=libraries.count(".so"),
        )
    )


@pytest.fixture
def compiler() -> None:
    if not any(map(shutil.which, ("g++", "clang++"))) or shutil.which("openssl") is None:
        pytest.skip("no C++ compiler or no openssl: compiled layers are NOT tested here")


@pytest.mark.extended  # `make test` compiles layers in parallelism/test_compiled
@pytest.mark.usefixtures("compiler")
def test_compiled_layers_train_as_eager_ones_and_a_new_machine_compiles_nothing(
    gangs: GangStarter, tmp_path: Path
) -> None:
    def started(name: str, claim: str, **changes: Any) -> Start:
        config = small(tmp_path / "text", steps=STEPS, log_every_steps=1, **changes)
        arguments = (config, str(tmp_path / name), str(tmp_path / "home"))
        (made,) = gangs.run(start, *arguments, world_size=1, checkpoint_folder=tmp_path / claim)
        return made

    eager = started("eager", "claim-of-eager")
    first = started("first", "claim", compile="blocks")
    (kept,) = (tmp_path / "claim").glob("kernels/*/0-0.kernels")
    (tmp_path / "claim-of-second").mkdir()
    shutil.copytree(tmp_path / "claim" / "kernels", tmp_path / "claim-of-second" / "kernels")
    second = started("second", "claim-of-second", compile="blocks")

    assert len(eager.losses) == STEPS
    assert first.losses == pytest.approx(eager.losses, rel=1e-5)
    assert (eager.compiled, eager.libraries) == (0, 0)
    assert first.compiled >= 2
    assert first.libraries > 0
    assert any("graphs compiled in" in line for line in first.lines)
    assert f"compiled kernels: kept in {kept}, {kept.stat().st_size / 1e6:.1f} MB" in first.lines

    assert second.losses == first.losses
    assert (second.compiled, second.libraries) == (0, 0)
    assert second.read == first.compiled
    assert any("compiled kernels: read from" in line for line in second.lines)
