"""Copy files, export checkpoints and read logs of init containers with real pods."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from drumline_cli.exit_codes import CommandExit
from tests.e2e.site import QUEUE, Site
from tests.patience import HANG_SECONDS
from tools.cluster.binaries import ensure_binaries
from tools.cluster.images import TRAINER_IMAGE
from tools.install import SITE_PACKAGES_CLAIM

pytestmark = pytest.mark.extended(keep=2, of="commands in pods")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with kubectl. The tests add it to the PATH."""
    shutil.copy(ensure_binaries(["kubectl"], say=print)["kubectl"], tmp_path / "kubectl")
    return tmp_path


def drumline(site: Site, folder: Path, *words: str, code: int = 0) -> str:
    """Run a command. Return its standard output and standard error."""
    options = ("--kubeconfig", str(site.cluster.kubeconfig), "-n", site.namespace)
    verb, *rest = words
    done = subprocess.run(
        [sys.executable, "-m", "drumline", verb, *options, *rest],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
        env={
            "PATH": f"{folder}:/usr/bin:/bin",
            "PYTHONPATH": "operator:trainer",
            "DRUMLINE_IMAGE": TRAINER_IMAGE,
        },
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def test_files_go_to_a_claim_and_back(site: Site, folder: Path) -> None:
    data = os.urandom(3 << 20)
    (folder / "books" / "deep").mkdir(parents=True)
    (folder / "books" / "large").write_bytes(data)
    (folder / "books" / "deep" / "small").write_text("x")
    drumline(site, folder, "cp", str(folder / "books"), "claim:checkpoints/books")
    drumline(site, folder, "cp", str(folder / "books" / "large"), "claim:checkpoints/more/")
    assert (site.checkpoints / "books" / "large").read_bytes() == data
    assert (site.checkpoints / "books" / "deep" / "small").read_text() == "x"
    assert (site.checkpoints / "more" / "large").read_bytes() == data
    drumline(site, folder, "cp", "claim:checkpoints/books", str(folder / "back"))
    assert (folder / "back" / "large").read_bytes() == data
    assert (folder / "back" / "deep" / "small").read_text() == "x"
    site.kube.wait_all("pods", site.namespace, lambda pods: not pods)


def test_a_checkpoint_is_exported_to_this_machine_and_to_a_claim(site: Site, folder: Path) -> None:
    site.submit(
        "brief",
        trainer={"steps": 2},
        checkpoint={"claimName": "checkpoints", "everySteps": 2},
    )
    site.finish("brief")
    # the image of throwaway clusters has no packages
    options = ("--claim", f"{SITE_PACKAGES_CLAIM}=/opt/site-packages", "--memory", "4Gi")
    for target in (str(folder / "exported"), "claim:checkpoints/exported"):
        assert "step-00000002" in drumline(site, folder, "export", "brief", target, *options)
    for place in (folder, site.checkpoints):
        with safe_open(place / "exported" / "model.safetensors", "np") as weights:
            assert "model.norm.weight" in weights.keys()  # noqa: SIM118 - no mapping


def test_logs_show_init_containers(site: Site, folder: Path) -> None:
    prepare = {"name": "prepare", "command": ["sh", "-c", "echo prepared"]}
    template = {"image": TRAINER_IMAGE, "command": ["echo", "trained"], "initContainers": [prepare]}
    site.submit("own", template=template)
    site.finish("own")
    printed = drumline(site, folder, "logs", "own")
    assert printed.index("[0] [prepare] prepared") < printed.index("[0] trained")


def test_packages_that_cannot_be_installed_fail_once_with_pips_reason(
    site: Site, folder: Path
) -> None:
    (folder / "requirements.txt").write_text("no requirement\n")
    options = ("-q", QUEUE, "--no-code", "--name", "packages", "--requirements")
    words = (*options, str(folder / "requirements.txt"), "--", "true")
    followed = drumline(site, folder, "run", *words, code=CommandExit.JOB_FAILED)
    again = drumline(site, folder, "logs", "packages")
    for printed in (followed, again):
        assert "[0] [requirements] " in printed
    (pod,) = site.pods("packages")
    assert pod["metadata"]["name"] == "packages-0-g1"
