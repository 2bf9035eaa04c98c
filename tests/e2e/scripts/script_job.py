"""A job that runs one of `programs/`, and what the same program comes to under torchrun alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.rehearsals import Rehearsal
from tests.e2e.site import Site
from tests.libraries.__main__ import environment
from tests.patience import HANG_SECONDS
from tools import install
from tools.cluster.images import TRAINER_IMAGE
from tools.cluster.volumes import bind_folder

FILES = Path(__file__).parent / "programs"
LIBRARIES_CLAIM = "libraries"
STEPS = 400
SAVED_EVERY = 10
SNAPSHOT_EVERY = 4
SHAPE = {"nodes": 2, "gpusPerNode": 1}
RESOURCES = {"cpu": "1500m", "memory": "2Gi"}
"""A pod of this size fills a node of two processors: the ranks are on two nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One script.

    Attributes:
        file: in the folder `programs`.
        what: it is.
        levels: at which it runs.
        needs_libraries: beside the packages of `.venv`.
    """

    file: str
    what: str
    levels: tuple[str, ...]
    needs_libraries: bool = False


PROGRAMS = {
    "ddp": Program(file="ddp.py", what="torchrun DDP", levels=("L0", "L1", "L2")),
    "fsdp2": Program(file="fsdp2.py", what="FSDP2", levels=("L0", "L1", "L2")),
    "trainer": Program(
        file="fine_tune.py",
        what="Hugging Face Trainer",
        levels=("L0", "L1"),
        needs_libraries=True,
    ),
    "lightning": Program(
        file="fit.py", what="Lightning", levels=("L0", "L1"), needs_libraries=True
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """Rank 0 has finished a step."""

    step: int
    loss: str
    """Its bits."""
    life: str
    """The process that did it."""
    at: float
    """Seconds since 1970."""
    ranks: int

    @property
    def began_at(self) -> float:
        """When that process began, in seconds since 1970."""
        return int(self.life.rpartition("/")[2]) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run came to; equal for two runs exactly if they are equal bit for bit."""

    losses: dict[int, str]
    weights: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptJob:
    """One job whose pods run a script of the user's."""

    rehearsal: Rehearsal
    program: Program
    level: str

    @property
    def site(self) -> Site:
        """Where it runs."""
        return self.rehearsal.site

    @property
    def name(self) -> str:
        """Of the TrainingJob."""
        return self.rehearsal.name

    def lines(self) -> list[StepLine]:
        """Every step that was ever finished, repeated ones again."""
        return step_lines(self.rehearsal.folder)

    def wait_for_life(self, life: str, *, ranks: int = 2) -> list[StepLine]:
        """Wait until another process than this finishes steps as one of so many; its lines."""
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            lines = self.lines()
            newest = [line for line in lines if line.life == lines[-1].life]
            if len(newest) > 1 and newest[0].life != life and newest[0].ranks == ranks:
                return newest
            if time.monotonic() > deadline:
                status = self.site.kube.get("trainingjobs", self.name, self.site.namespace)
                raise TimeoutError(f"{self.name} does not go on: {status.get('status')}")
            time.sleep(0.05)

    def result(self) -> Result:
        """Of the whole run.

        Raises:
            AssertionError: a step that was done twice came to something else the second time.
        """
        return result_of(self.rehearsal.folder)


def begin(site: Site, name: str, *, program: Program, level: str, **spec: Any) -> ScriptJob:
    """Submit it; it goes slowly until `hurry`."""
    job = Rehearsal(site=site, name=name, steps=STEPS)
    _lay_out(job.folder)
    (job.folder / "paced").touch()
    volumes = {"saved": install.CHECKPOINTS_CLAIM, "packages": install.SITE_PACKAGES_CLAIM}
    mounts = {"saved": "/checkpoints", "packages": "/opt/site-packages"}
    if program.needs_libraries:
        bind_folder(
            site.cluster,
            namespace=site.namespace,
            claim=LIBRARIES_CLAIM,
            host_path=libraries(),
            read_only=True,
        )
        volumes["libraries"], mounts["libraries"] = LIBRARIES_CLAIM, "/opt/libraries"
    folder = f"/checkpoints/{name}"
    variables = {
        **_variables(folder, level=level),
        "PYTHONPATH": "/opt/libraries:/opt/site-packages",
    }
    template = {
        "image": TRAINER_IMAGE,
        "launch": "PerGpu",
        "command": ["python3", f"{folder}/{program.file}"],
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "terminationGracePeriodSeconds": 20,
        "volumes": [
            {"name": volume, "persistentVolumeClaim": {"claimName": claim}}
            for volume, claim in volumes.items()
        ],
        "volumeMounts": [
            {"name": volume, "mountPath": path, "readOnly": volume != "saved"}
            for volume, path in mounts.items()
        ],
    }
    site.submit(name, **SHAPE, resources=RESOURCES, template=template, **spec)
    return ScriptJob(rehearsal=job, program=program, level=level)


def under_torchrun(folder: Path, *, program: Program) -> Result:
    """The same script with nothing around it but torchrun, on this machine, undisturbed."""
    _lay_out(folder)
    paths = [libraries()] if program.needs_libraries else []
    environ = {
        **os.environ,
        **_variables(str(folder), level="L0"),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ranks = SHAPE["nodes"] * SHAPE["gpusPerNode"]
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    done = subprocess.run(
        [*torchrun, f"--nproc-per-node={ranks}", str(folder / program.file)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    # a rank may be aborted while its interpreter ends: its work is done by then
    assert (folder / "weights").exists(), done.stderr[-4000:]
    return result_of(folder)


def libraries() -> Path:
    """The packages that `make test-all WHAT=libraries` tests with, installed where they are not."""
    (packages,) = environment().parents[1].glob("lib/python*/site-packages")
    return packages


def step_lines(folder: Path) -> list[StepLine]:
    """What rank 0 has written down; a line that is being written does not count."""
    path = folder / "metrics.jsonl"
    whole, _, _ = path.read_text().rpartition("\n") if path.exists() else ("", "", "")
    return [StepLine(**json.loads(line)) for line in whole.splitlines()]


def result_of(folder: Path) -> Result:
    """What a complete run came to."""
    losses: dict[int, str] = {}
    for line in step_lines(folder):
        before = losses.setdefault(line.step, line.loss)
        assert before == line.loss, f"step {line.step}: {before}, then {line.loss}"
    return Result(losses=losses, weights=(folder / "weights").read_text())


def _lay_out(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    for path in FILES.glob("*.py"):
        shutil.copy(path, folder)


def _variables(folder: str, *, level: str) -> dict[str, str]:
    settings: dict[str, Any] = {
        "RUN_FOLDER": folder,
        "STEPS": STEPS,
        "SAVED_EVERY": SAVED_EVERY,
        "SNAPSHOT_EVERY": SNAPSHOT_EVERY,
        "CLIENT": level,
        "OMP_NUM_THREADS": 1,
        "HF_HUB_OFFLINE": 1,
        "HF_HOME": "/tmp/huggingface",  # noqa: S108 - inside the pod
        "PYTHONDONTWRITEBYTECODE": 1,
    }
    return {name: str(value) for name, value in settings.items()}
