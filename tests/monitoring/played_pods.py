"""Pods of the bundled trainer as processes of this machine: real agents and ranks on fake nodes.

KWOK gives each pod a loopback address; here its container's program is started there, with the
environment that the operator wrote into the pod. What a kubelet would mount lies in a folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from drumline.lifecycle.manifests.children import job_token
from drumline_contract import Env
from tests.kube import Json, Kube
from tests.operator_process import ROOT, SIGNING_KEY

_LOOK_SECONDS = 0.5


class PlayedPods:
    """Starts an agent for each pod of the bundled trainer that runs, and ends it with its pod.

    Args:
        kube: the API server; a thread's own.
        folder: for what pods mount, and their output.
    """

    def __init__(self, kube: Kube, folder: Path) -> None:
        self._kube = kube
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._play)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()
        for uid in list(self._processes):
            self._end(uid)

    def ranks_of(self, job: str) -> list[int]:
        """Process ids of the ranks and zygotes of a job's pods, without their agents."""
        agents = [
            process.pid
            for uid, process in self._processes.items()
            if (self._folder / uid / "job").read_text() == job
        ]
        return [child for agent in agents for child in _descendants(agent)]

    def _play(self) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            with suppress(OSError):  # the API server is stopped for a while
                self._look()

    def _look(self) -> None:
        pods = {
            pod["metadata"]["uid"]: pod
            for pod in self._kube.list("pods", labels="drumline.dev/job")
            if not pod["metadata"].get("deletionTimestamp")
        }
        for uid in self._processes.keys() - pods.keys():
            self._end(uid)
        for uid in pods.keys() - self._processes.keys():
            if _runs_trainer(pods[uid]) and pods[uid]["status"].get("podIP"):
                self._processes[uid] = self._start(pods[uid])

    def _start(self, pod: Json) -> subprocess.Popen[bytes]:
        uid, address = pod["metadata"]["uid"], pod["status"]["podIP"]
        folder = self._folder / uid
        folder.mkdir(parents=True)
        labels = pod["metadata"]["labels"]
        (folder / "job").write_text(labels["drumline.dev/job"])
        (folder / "token").write_bytes(
            job_token(SIGNING_KEY.encode(), labels["drumline.dev/job-uid"])
        )
        (container,) = pod["spec"]["containers"]
        environment = {each["name"]: _value(each, pod) for each in container["env"]}
        if checkpoints := environment[Env.CHECKPOINT_FOLDER]:
            environment[Env.CHECKPOINT_FOLDER] = f"{self._folder}/claim{checkpoints}"
        environment |= {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(ROOT / "trainer"), str(ROOT)]),
            "OMP_NUM_THREADS": "1",
            "DRUMLINE_DEVICE": "cpu",  # the GPUs do not exist
            "DRUMLINE_AGENT_ADDRESS": address,
            "DRUMLINE_TOKEN_FILE": str(folder / "token"),
            "DRUMLINE_GANG_FOLDER": str(folder / "gang"),
            "DRUMLINE_SNAPSHOT_FOLDER": str(folder / "snapshots"),
            "DRUMLINE_TERMINATION_LOG": str(folder / "termination-log"),
            "DRUMLINE_QUIESCE_SECONDS": "20",  # on a machine whose cores many want
        }
        process = subprocess.Popen(
            [sys.executable, *container["command"][1:]],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # as in a pod: the ranks' output is no file
            stderr=subprocess.STDOUT,
        )
        log = self._folder / f"{pod['metadata']['name']}.log"
        threading.Thread(target=_keep_output, args=(process, log), daemon=True).start()
        return process

    def _end(self, uid: str) -> None:
        process = self._processes.pop(uid)
        ours = [process.pid, *_descendants(process.pid)]
        for pid in ours:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.wait(timeout=60)
        shutil.rmtree(self._folder / uid, ignore_errors=True)


def _keep_output(process: subprocess.Popen[bytes], log: Path) -> None:
    assert process.stdout is not None
    with log.open("ab", buffering=0) as kept:
        for line in process.stdout:
            kept.write(line)


def _runs_trainer(pod: Json) -> bool:
    (container,) = pod["spec"]["containers"]
    return any(each["name"] == Env.CONFIG for each in container.get("env", []))


def _value(variable: Json, pod: Json) -> str:
    if "value" in variable:
        return variable["value"]
    part, _, field = variable["valueFrom"]["fieldRef"]["fieldPath"].partition(".")
    return pod[part][field]


def _descendants(pid: int) -> list[int]:
    """Children, and theirs."""
    with suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [each for child in map(int, children) for each in (child, *_descendants(child))]
    return []
