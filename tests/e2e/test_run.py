"""`drumline run` with code that is in no ConfigMap: a folder in a bucket, and one on a claim.

The store that speaks S3 and the command itself run where the pods can reach the store: in the
network namespace of the control plane.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.site import QUEUE, Site
from tests.patience import HANG_SECONDS
from tools.cluster import kubectl
from tools.cluster.control_plane import SERVICE_ADDRESS
from tools.cluster.images import TRAINER_IMAGE
from tools.cluster.network import fabric_netns

pytestmark = pytest.mark.extended(keep=2, of="commands in pods")

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "of-this-test"}
GATEWAY = "10.90.0.254"
API = f"https://{SERVICE_ADDRESS}:443"
STORE = f"""
import boto3, sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="{GATEWAY}", port=0, verbose=False)
server.start()
address = "http://%s:%d" % server.get_host_and_port()
boto3.client("s3", endpoint_url=address, region_name="us-east-1").create_bucket(Bucket="code")
print(address, flush=True)
sys.stdin.read()
"""
SCRIPT = """
import os, pathlib
from helpers import answer
pathlib.Path("/checkpoints/answer").write_text(answer())
print("step 1 loss 0.5", flush=True)
"""


def inside(site: Site, *command: str) -> list[str]:
    """The command line that runs in the control plane's network."""
    netns = fabric_netns(site.cluster.name)
    return ["/usr/bin/nsenter", f"--net=/run/netns/{netns}", "--", *command]


@pytest.fixture
def store(site: Site) -> Iterator[str]:
    """The address of a store with an empty bucket."""
    with subprocess.Popen(
        inside(site, sys.executable, "-c", STORE),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin", **KEYS},
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.stdin.close()
        server.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "helpers.py").write_text("def answer(): return 'from a module beside it'\n")
    return folder


def run(site: Site, *arguments: str, **environment: str) -> str:
    """`drumline run` until the job has ended; what it printed."""
    inner = site.cluster.folder / "inside.kubeconfig"
    config = yaml.safe_load(site.cluster.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = API
    inner.write_text(json.dumps(config))
    options = ("-n", site.namespace, "-q", QUEUE, "--image", TRAINER_IMAGE, "--name", "run")
    claim = ("--claim", "checkpoints=/checkpoints")
    command = (sys.executable, "-m", "drumline", "run", "--kubeconfig", str(inner), *options)
    done = subprocess.run(
        inside(site, *command, *claim, *arguments, "--", "python3", "train.py"),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "operator:trainer", **environment},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_a_folder_in_a_bucket_is_the_code_of_the_pods(site: Site, store: str, folder: Path) -> None:
    values = [f"--from-literal={name}={value}" for name, value in KEYS.items()]
    kubectl(site.cluster, "create", "secret", "generic", "bucket", f"-n={site.namespace}", *values)
    place = ("--code-from", "s3://code/team", "--code-secret", "bucket", "--folder", str(folder))
    printed = run(site, *place, **KEYS, AWS_ENDPOINT_URL=store)
    assert "step 1 loss 0.5" in printed
    assert (site.checkpoints / "answer").read_text() == "from a module beside it"


def test_a_folder_of_a_claim_is_the_code_of_the_pods(site: Site, folder: Path) -> None:
    source = site.checkpoints / "src"
    source.mkdir()
    for file in folder.iterdir():
        (source / file.name).write_text(file.read_text())
    printed = run(site, "--code-from", "claim:checkpoints/src")
    assert "step 1 loss 0.5" in printed
    assert (site.checkpoints / "answer").read_text() == "from a module beside it"
