"""What `drumline run` asks for, as objects that the API's models take."""

from __future__ import annotations

import argparse
import base64
from pathlib import Path
from typing import Any

import pytest

from drumline_api.trainingjob import TrainingJobSpec
from drumline_cli.arguments import parser
from drumline_cli.errors import BadInput
from drumline_cli.run.manifests import (
    code_manifests,
    code_source,
    job_manifest,
    job_stem,
    launch_of,
)
from drumline_cli.run.pack import PackedFolder, pack
from drumline_cli.run.request import run_request
from drumline_contract import MAX_CODE_BYTES, MAX_CODE_PART_BYTES

IMAGE = "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime"
TRAIN = ["python", "train.py", "--lr", "3e-4"]


def chosen(*arguments: str, command: list[str] = TRAIN) -> argparse.Namespace:
    options = parser("drumline").parse_args(["run", *arguments])
    options.command_line = command
    return options


def manifest(*arguments: str, packed: PackedFolder | None = None, **environment: str) -> Any:
    request = run_request(
        chosen(*arguments),
        {"DRUMLINE_IMAGE": IMAGE, **environment},
        queue="research",
        namespace="team",
        letters="abcd",
    )
    parts = code_manifests(packed) if packed else []
    return job_manifest(request, code_source(packed, parts) if packed else None)


def test_the_short_form_is_a_whole_job() -> None:
    made = manifest("-N2", "-G8")
    assert made["metadata"] == {"name": "train-abcd", "namespace": "team"}
    assert made["spec"] == {
        "queue": "research",
        "nodes": 2,
        "gpusPerNode": 8,
        "template": {"image": IMAGE, "launch": "PerGpu", "command": TRAIN},
    }


def test_every_option_is_a_field_that_the_api_takes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "requirements.txt").write_text("tidy==1.0\n")
    packed = pack(tmp_path, ["train.py"])
    made = manifest(
        *("--requirements", str(tmp_path / "requirements.txt")),
        *("--name", "llama", "--image", "mine:1", "--launch", "PerPod", "-e", "A=b=c"),
        *("--claim", "corpus=/data", "--claim", "runs=/runs", "--pool", "h100"),
        *("--priority", "high", "--resources", "cpu=8,memory=64Gi", "--user", "ann"),
        *("--after", "tokenize", "--after", "old:Finished"),
        *("--preload", "torch, transformers,torch"),
        *("--progress", r"it (?P<step>\d+)", "--progress", r"l=(?P<loss>\S+)"),
        packed=packed,
    )
    spec = TrainingJobSpec.model_validate(made["spec"])
    named = (made["metadata"]["name"], spec.gpu_pool, spec.priority_class_name, spec.user)
    assert named == ("llama", "h100", "high", "ann")
    assert spec.resources == {"cpu": "8", "memory": "64Gi"}
    assert [(each.job, each.condition) for each in spec.after or []] == [
        ("tokenize", "Succeeded"),
        ("old", "Finished"),
    ]
    assert spec.template is not None
    assert (spec.template.image, spec.template.launch) == ("mine:1", "PerPod")
    assert [(each.name, each.value) for each in spec.template.env or []] == [
        ("PYTHONPATH", "/requirements/packages"),
        ("A", "b=c"),
    ]
    assert spec.template.preload == ["torch", "transformers"]
    assert spec.template.progress is not None
    assert spec.template.progress.patterns == [r"it (?P<step>\d+)", r"l=(?P<loss>\S+)"]
    [install] = spec.template.init_containers or []
    assert install.image is None  # the job's
    claims = {
        volume.name: volume.persistent_volume_claim.claim_name
        for volume in spec.template.volumes or []
        if volume.persistent_volume_claim is not None
    }
    mounts = [
        (claims.get(mount.name), mount.mount_path) for mount in spec.template.volume_mounts or []
    ]
    assert mounts == [("corpus", "/data"), ("runs", "/runs"), (None, "/requirements")]
    assert spec.template.code is not None
    assert spec.template.code.digest == packed.digest
    (part,) = code_manifests(packed, namespace="team")
    assert spec.template.code.config_maps == [part["metadata"]["name"]]
    assert part["immutable"] is True


def test_parts_are_the_code_in_order_and_named_by_it() -> None:
    content = bytes(range(250)) * (MAX_CODE_BYTES // 250)
    parts = code_manifests(PackedFolder(content=content, files=1))
    data = [base64.b64decode(part["binaryData"]["part"]) for part in parts]
    assert b"".join(data) == content
    assert max(map(len, data)) == MAX_CODE_PART_BYTES
    assert len({part["metadata"]["name"] for part in parts}) == 5
    more = code_manifests(PackedFolder(content=content[1:], files=1))
    names = {part["metadata"]["name"] for part in (*parts, *more)}
    assert len(names) == 10


@pytest.mark.parametrize(
    ("command", "stem", "launch"),
    [
        (["python", "src/Train_Me.py"], "train-me", "PerGpu"),
        (["/usr/bin/torchrun", "train.py"], "train", "PerPod"),
        (["accelerate", "launch", "3d.py"], "run-3d", "PerPod"),
        (["python3", "-m", "torch.distributed.run", "a.py"], "a", "PerPod"),
        (["./-"], "run", "PerGpu"),
        (["python", "-m", "x" * 80 + ".py"], "x" * 40, "PerGpu"),
    ],
)
def test_name_and_launch_follow_from_the_command(
    command: list[str], stem: str, launch: str
) -> None:
    assert (job_stem(command), launch_of(command, ranks=2)) == (stem, launch)


def test_a_script_of_a_shell_needs_the_way_in_which_it_is_started() -> None:
    with pytest.raises(BadInput, match="--launch PerPod"):
        launch_of(["bash", "run.sh"], ranks=2)
    assert launch_of(["bash", "run.sh"], ranks=1) == "PerGpu"


@pytest.mark.parametrize(
    ("arguments", "command", "sentence"),
    [
        (("--image", "a"), [], "drumline run -- python train.py"),
        ((), TRAIN, "no image is given"),
        (("--image", "a", "-e", "A"), TRAIN, "--env A: this shell has no variable A"),
        (
            ("--image", "a", "--after", "x:Failed"),
            TRAIN,
            "invalid --after x:Failed: want JOB, or JOB:Finished",
        ),
        (("--image", "a", "--claim", "=/data"), TRAIN, "write NAME=/FOLDER"),
        (("--image", "a", "--resources", "cpu"), TRAIN, "write cpu=8,memory=64Gi"),
        (("--image", "a", "--resources", "memory=64"), TRAIN, "memory=64Gi"),
        (("--image", "a", "--resources", "cpu=8,memory=512m"), TRAIN, "memory=512Mi"),
        (("--image", "a", "--progress", "(?P<step>"), TRAIN, "invalid --progress"),
        (("--image", "a", "--progress", "x(?P<loss>y)"), TRAIN, "no pattern has the group step"),
        (("--image", "a", "--progress", "(?P<it>y)"), TRAIN, "unknown group it: want step"),
        (("--image", "a", "--preload", "torch,"), TRAIN, "at most 16 names of Python modules"),
        (
            ("--image", "a", "--preload", ",".join(f"m{number}" for number in range(17))),
            TRAIN,
            "at most 16 names of Python modules",
        ),
        (
            ("--image", "a", "--preload", "torch"),
            ["torchrun", "train.py"],
            "--preload: the command must be a Python program",
        ),
    ],
)
def test_what_is_missing_is_said(
    arguments: tuple[str, ...], command: list[str], sentence: str
) -> None:
    options = chosen(*arguments, command=command)
    with pytest.raises(BadInput, match=sentence):
        run_request(options, {}, queue="q", namespace=None, letters="abcd")
