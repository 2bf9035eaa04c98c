"""An export of a run's checkpoint that is killed, and begun again, is the one nobody disturbed."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.checkpoint.folder_files import FolderFiles
from drumline_trainer.export import whole_weights
from drumline_trainer.models.hugging_face import export_hugging_face, import_hugging_face
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_rank
from tests.gloo.stored import whole_tensors

SETTINGS: dict[str, Any] = {"max_file_bytes": 4000, "identity": "step 4"}
"""Several files of a model of 30 kB."""


def export_file_by_file(
    _: Placement, pipe: Connection, step: Path, config: TrainerConfig, folder: Path
) -> None:
    """Say which file is there, and go on when told to."""

    def wait(line: str) -> None:
        pipe.send(line)
        pipe.recv()

    with whole_weights(FolderFiles(path=step, committed_place=step.name), config) as weights:
        export_hugging_face(weights, config.model, folder, print_line=wait, **SETTINGS)


def test_an_export_that_is_killed_goes_on_where_it_was(gangs: GangStarter, tmp_path: Path) -> None:
    config = small(tmp_path / "text", steps=4)
    run, killed, calm = (tmp_path / name for name in ("run", "killed", "calm"))
    gangs.run(train_rank, config, None, world_size=2, checkpoint_folder=run)
    step = run / "step-00000004"
    with gangs.gang(export_file_by_file, step, config, killed, world_size=1) as gang:
        first = gang.pipes[0].recv()
        gang.pipes[0].send("go on")
        second = gang.pipes[0].recv()
        gang.kill(0)
    assert not (killed / "config.json").exists()
    lines: list[str] = []
    with whole_weights(FolderFiles(path=step, committed_place=step.name), config) as weights:
        export_hugging_face(weights, config.model, killed, print_line=lines.append, **SETTINGS)
        export_hugging_face(weights, config.model, calm, **SETTINGS)
    assert lines
    assert not {first, second} & set(lines)
    files = {path.name: path.read_bytes() for path in killed.iterdir()}
    assert files == {path.name: path.read_bytes() for path in calm.iterdir()}
    trained = whole_tensors(step)
    for name, tensor in import_hugging_face(killed)[1]:
        assert tensor.numpy().tobytes() == trained[f"model.{name}"].tobytes()
