"""Roles on real kubelets: a launcher beside its workers, and a generator beside ranks of agents.

The workers serve forever, like `sshd` under MPI. The launcher reads MPI's host file and requests a
part of a sum from every worker. It writes the sum and exits, and the job succeeds.
"""

from __future__ import annotations

import pytest

from tests.e2e.site import Site
from tests.kube import Json
from tools.cluster.images import TRAINER_IMAGE

WORKER = """
import os, socket
rank = int(os.environ["NODE_RANK"])
peer = socket.gethostbyname("launcher-0")
server = socket.create_server(("", 7000))
while True:
    connection, address = server.accept()
    known = "launcher" if address[0] == peer else "stranger"
    with connection, connection.makefile("w") as answer:
        answer.write(f"{10 ** rank} {known}\\n")
"""
LAUNCHER = """
import os, pathlib, socket, time
hosts = [line.split() for line in open(os.environ["OMPI_MCA_orte_default_hostfile"])]
def ask(host):
    while True:
        try:
            with socket.create_connection((host, 7000)) as connection:
                return connection.makefile().readline().split()
        except ConnectionRefusedError:
            time.sleep(0.05)
answers = [ask(host) for host, _ in hosts]
slots = [words for _, words in hosts]
text = f"{sum(int(part) for part, _ in answers)} {[known for _, known in answers]} {slots}"
pathlib.Path("/checkpoints/sum").write_text(text)
"""
GENERATOR = """
import socket, uuid
server, name = socket.create_server(("", 7000)), uuid.uuid4().hex
while True:
    connection, _ = server.accept()
    connection.sendall(name.encode())
    connection.close()
"""
TRAINER = """
import itertools, pathlib, socket, time
answers = pathlib.Path("/checkpoints/answers")
for step in itertools.count(1):
    try:
        with socket.create_connection(("generator-0", 7000)) as connection:
            name = connection.makefile().read()
    except OSError:
        continue
    finally:
        time.sleep(0.1)
    with answers.open("a") as file:
        file.write(f"{name}\\n")
    print(f"step {step} loss 1.0", flush=True)
    if len(set(answers.read_text().split())) == 2:
        break
"""


def test_a_launcher_finds_its_workers_and_its_success_is_the_jobs(site: Site) -> None:
    template = {
        "image": TRAINER_IMAGE,
        "command": ["python3", "-c", WORKER],
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "saved", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
    }
    launcher = {
        "name": "launcher",
        "completesJob": True,
        "command": ["python3", "-c", LAUNCHER],
        "volumeMounts": [{"name": "saved", "mountPath": "/checkpoints"}],
    }
    site.submit("mpi", nodes=2, gpusPerNode=2, template=template, roles=[launcher])
    status = site.finish("mpi")
    text = (site.checkpoints / "sum").read_text()
    assert text == "11 ['launcher', 'launcher'] ['slots=2', 'slots=2']"
    assert (status["ready"], status["generation"], status["restarts"]) == ("3/3", 1, 0)


@pytest.mark.extended
def test_a_lost_generator_is_replaced_alone_and_found_again_by_its_name(site: Site) -> None:
    template = {
        "image": TRAINER_IMAGE,
        "launch": "PerGpu",
        "command": ["python3", "-u", "-c", TRAINER],
        "volumes": [{"name": "saved", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
        "volumeMounts": [{"name": "saved", "mountPath": "/checkpoints"}],
    }
    generator = {"name": "generator", "command": ["python3", "-c", GENERATOR]}
    site.submit("grpo", nodes=1, template=template, roles=[generator])

    def has_answers(job: Json | None) -> bool:
        return bool((job or {}).get("status", {}).get("step"))

    site.wait("grpo", has_answers)
    (rank, lost) = site.pods("grpo")
    site.kube.delete("pods", lost["metadata"]["name"], site.namespace)
    status = site.finish("grpo")
    after = site.pods("grpo")
    assert after[0]["metadata"]["uid"] == rank["metadata"]["uid"]
    assert len(set((site.checkpoints / "answers").read_text().split())) == 2
    assert status["generation"] == 2
