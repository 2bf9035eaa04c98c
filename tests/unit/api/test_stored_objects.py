"""The structs of our objects are those of the models, and a new field reaches every reader."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drumline_api.gpupool import GpuPool
from drumline_api.schema import StructuralSchema
from drumline_api.trainingjob import TrainingJob
from drumline_api.trainingqueue import TrainingQueue
from tools.generate import stored_objects

ROOT = Path(__file__).parents[3]
MODELS = (TrainingJob, TrainingQueue, GpuPool)
READ_EVERYWHERE = """
import json
from drumline_api.load import parse
from drumline_api.objects.custom import StoredTrainingJob
from drumline_api.trainingjob import TrainingJobSpec
from drumline_addons.archive.documents import archivable_job
from drumline.kube import codec
from drumline_addons.notifications.jobs import SEEN_JOBS
from drumline.overview.objects import JobObject, decoded

raw = json.dumps({
    "metadata": {"name": "j", "namespace": "n", "uid": "u"},
    "spec": {"queue": "q", "wishedColor": "red"},
    "status": {"seenColors": [{"colorName": "blue"}]},
}).encode()
(listed,) = decoded([raw], JobObject).objects
plain = decoded([raw], StoredTrainingJob).objects
for job in (listed, SEEN_JOBS.decode(raw), *plain):
    assert isinstance(job, StoredTrainingJob)
    assert job.spec.wished_color == "red"
    assert job.status.seen_colors[0].color_name == "blue"
assert parse(TrainingJobSpec, codec.spec_of(codec.training_job(raw))).wished_color == "red"
assert archivable_job(raw).unpacked()["spec"]["wishedColor"] == "red"
(absent,) = decoded([b'{"metadata": {"name": "j"}}'], JobObject).objects
assert (absent.spec.wished_color, absent.status.seen_colors) == ("green", None)
"""


def test_the_checked_in_structs_are_those_of_the_models() -> None:
    assert stored_objects.FILE.read_text(encoding="utf-8") == stored_objects.text(), (
        "run `make generate`"
    )


@pytest.mark.parametrize("model", stored_objects.UNREAD)
def test_what_is_left_out_exists(model: str) -> None:
    definitions = {
        name: schema
        for each in MODELS
        for name, schema in each.model_json_schema(schema_generator=StructuralSchema)[
            "$defs"
        ].items()
    }
    assert stored_objects.UNREAD[model] <= set(definitions[model]["properties"])


def test_a_new_field_of_the_models_is_read_by_all_readers(tmp_path: Path) -> None:
    for folder in ("operator", "trainer"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "tools" / "generate").mkdir(parents=True)
    shutil.copy(ROOT / "tools/generate/stored_objects.py", tmp_path / "tools" / "generate")
    api = tmp_path / "operator/drumline_api"
    _insert(
        api / "trainingjob.py",
        before="    suspend: bool = False\n",
        text='    wished_color: Literal["red", "green"] = "green"\n',
    )
    _insert(
        api / "jobstatus.py",
        before="class TrainingJobStatus(",
        text="class SeenColor(ApiModel):\n    color_name: str\n\n\n",
    )
    _insert(
        api / "jobstatus.py",
        before="    ready: ShortText",
        text="    seen_colors: list[SeenColor] | None = None\n",
    )
    _python("-m", "tools.generate.stored_objects", folder=tmp_path)
    _python("-c", READ_EVERYWHERE, folder=tmp_path)


def _insert(file: Path, *, before: str, text: str) -> None:
    source = file.read_text(encoding="utf-8")
    assert source.count(before) == 1
    file.write_text(source.replace(before, text + before), encoding="utf-8")


def _python(*arguments: str, folder: Path) -> None:
    path = os.pathsep.join(str(folder / part) for part in ("operator", "trainer", "."))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
