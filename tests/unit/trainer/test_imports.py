"""What importing the trainer costs and what its checkpoint path can never do."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import drumline_trainer

PACKAGE = Path(drumline_trainer.__file__).parent
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
FORBIDDEN_CALLS = {
    "all_gather_object",
    "gather_object",
    "scatter_object_list",
    "broadcast_object_list",
    "send_object_list",
    "recv_object_list",
}


@pytest.mark.parametrize(
    "module",
    [
        "drumline_contract",
        "drumline_contract.config",
        "drumline_agent.rank_protocol.placement",
        "drumline_agent.rank_protocol.heartbeat",
        "drumline_trainer.host.cpus",
        "drumline_agent.rank_protocol.control",
        "drumline_agent.rank_protocol.orders",
        "drumline_trainer.recovery.snapshot_interval",
        "drumline_trainer.__main__",
    ],
)
def test_light_modules_import_neither_torch_nor_numpy(module: str) -> None:
    program = f"import sys, {module}\nprint(sorted({{'torch', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def sources() -> list[Path]:
    rooms = [
        "checkpoint",
        "parallelism",
        "models",
        "data",
        "optimization",
        "metrics",
        "recovery",
        "rank",
    ]
    folders = [
        *(PACKAGE / room for room in rooms),
        PACKAGE.parent / "drumline_agent" / "rank_protocol",
        PACKAGE.parent / "drumline_contract" / "step_figures",
    ]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    client = PACKAGE.parent / "drumline_client"
    return [*files, PACKAGE / "train.py", *client.glob("*.py")]


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_nothing_unpickles(path: Path) -> None:
    used: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                used |= {name.name.split(".")[0] for name in names} & FORBIDDEN_MODULES
            case ast.ImportFrom(module=str(module)):
                used |= {module.split(".")[0]} & FORBIDDEN_MODULES
            case ast.Attribute(value=ast.Name(id="torch"), attr="load" | "save" as attr):
                used.add(f"torch.{attr}")
            case ast.Attribute(attr=attr) | ast.Name(id=attr) if attr in FORBIDDEN_CALLS:
                used.add(attr)
    assert used == set()
