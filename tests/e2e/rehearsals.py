"""A job whose faults are planned, and what is compared at its end.

The plan lies beside the job's checkpoints, on a folder of this machine, and so does everything the
job writes: what it did can be read while its pods, its node or the operator are gone.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import safe_open

from drumline_trainer.checkpoint.manifest import MANIFEST_FILE, Manifest
from tests.e2e.site import Site
from tests.kube import Json
from tests.patience import HANG_SECONDS
from tools.cluster.images import REHEARSAL_IMAGE
from tools.cluster.inside import Inhabitant, inhabitants

INDEX, BIRTH = "drumline.dev/index", "drumline.dev/generation"
RESOURCES = {"cpu": "1500m", "memory": "2Gi"}
"""Of a pod: its share of a busy machine, and a limit to outgrow."""
REHEARSED: Json = {"steps": 150, "nodes": 2, "gpusPerNode": 2, "resources": RESOURCES}
"""Two pods of two ranks on two of three nodes: the third is the spare."""
BATCH = {"globalBatchSize": 4, "sequenceLength": 32}
OVERRIDES = {
    "log_every_steps": 1,  # every step is written down at once
    "model": {"dropout": 0.1},  # training itself draws random numbers
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What befalls a rank, once, when it enters a phase.

    Attributes:
        finished: steps finished by then; None: any number.
        after: only once this other fault has struck.
        together: waits until this other fault is about to strike, too.
    """

    name: str
    rank: int
    phase: str
    kind: str
    finished: int | None = None
    after: str | None = None
    together: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """One rank process, as it introduced itself."""

    rank: int
    pid: int
    pod: str
    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What training came to; equal for two runs exactly if they are equal bit for bit."""

    losses: dict[int, str]
    """By step, in the digits that were written: enough of them to tell any two floats apart."""
    weights: dict[str, str]
    """SHA-256 of every piece of every tensor of the last checkpoint, moments included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """One job on the rehearsal image."""

    site: Site
    name: str
    steps: int
    faults: tuple[Fault, ...] = field(default=())

    @property
    def folder(self) -> Path:
        """Where the job keeps its checkpoints."""
        return self.site.checkpoints / self.name

    def begun(self) -> list[Begun]:
        """Every rank process that ever began, in that order."""
        return [Begun(**line) for line in _json_lines(self.folder / "processes.jsonl")]

    def process(self, rank: int) -> tuple[str, Inhabitant]:
        """The pod's uid and the process of a rank, as it is now."""
        newest = [each for each in self.begun() if each.rank == rank][-1]
        for pod in self.site.pods(self.name):
            uid = pod["metadata"]["uid"]
            value = inhabitants(self.site.cluster, uid).get(newest.pid)
            if pod["spec"]["hostname"] == newest.pod and value is not None:
                return uid, value
        raise LookupError(f"rank {rank} runs in no pod of {self.name}")

    def written(self) -> list[tuple[int, str]]:
        """Step and loss of every line of the losses, steps that were done twice included."""
        return [(line["step"], line["loss"]) for line in _json_lines(self.losses_file, exact=True)]

    def samples(self) -> dict[int, list[int]]:
        """Samples of each step in order, as the last membership that did the step read them."""
        reads: dict[int, dict[tuple[int, int], list[int]]] = {}
        for line in _json_lines(self.folder / "samples.jsonl"):
            membership = (line["generation"], line["attempt"])
            read = reads.setdefault(line["step"], {}).setdefault(membership, [])
            read += range(line["first"], line["end"])
        return {step: sorted(by[max(by)]) for step, by in sorted(reads.items())}

    def commits(self) -> dict[int, float]:
        """Checkpoints that are on storage: step, and when its manifest was written."""
        result = self.folder.glob("step-*/manifest.json")
        return {
            int(each.parent.name.removeprefix("step-")): each.stat().st_mtime for each in result
        }

    @property
    def losses_file(self) -> Path:
        """Rank 0 writes it."""
        return self.folder / "metrics.jsonl"

    def last_step(self) -> int:
        """Newest step whose loss was written."""
        lines = self.written()
        return lines[-1][0] if lines else 0

    def reach(self, step: int, *, seconds: float = HANG_SECONDS) -> int:
        """Wait until a step is finished; returns the newest."""
        return self._until(
            lambda: newest if (newest := self.last_step()) >= step else None,
            what=f"step {step}",
            seconds=seconds,
        )

    def struck(self, fault: str, *, seconds: float = HANG_SECONDS) -> float:
        """Wait until a planned fault has struck; returns when it did (seconds since the epoch)."""
        note = self.folder / "struck" / fault
        return self._until(
            lambda: float(text) if note.exists() and (text := note.read_text()) else None,
            what=f"fault {fault}",
            seconds=seconds,
        )

    def _until(self, look: Callable[[], Any], *, what: str, seconds: float) -> Any:
        """Look at files until there is something: they are another machine's to write."""
        deadline = time.monotonic() + seconds
        while (seen := look()) is None:
            if time.monotonic() > deadline:
                status = self.site.kube.get("trainingjobs", self.name, self.site.namespace)
                raise TimeoutError(f"{self.name}: no {what} in {seconds} s: {status.get('status')}")
            time.sleep(0.05)
        return seen

    def slow_down(self) -> None:
        """Take a second longer for each step from here on: waiting for it costs no more steps."""
        (self.folder / "paced").write_text("1.0")

    def hurry(self) -> None:
        """Train as fast as it goes from here on."""
        (self.folder / "paced").unlink()

    def goes_on(self, *, seconds: float = HANG_SECONDS) -> None:
        """Wait until training finished two more steps, new ones or old ones again."""
        lines = len(self.written()) + 2
        self._until(
            lambda: True if len(self.written()) >= lines else None,
            what="further steps",
            seconds=seconds,
        )

    def hear(self, event: str, *, times: int = 1, seconds: float = HANG_SECONDS) -> str:
        """Wait until some agent has logged an event so often; returns when it was the last time."""

        def heard() -> str | None:
            for pod in self.site.pods(self.name):
                lines = self.site.logs(pod["metadata"]["name"]).splitlines()
                results = [line for line in lines if f'"event":"{event}"' in line]
                if len(results) >= times:
                    return json.loads(results[-1])["time"]
            return None

        return self._until(heard, what=event, seconds=seconds)

    def members(self) -> dict[int, Json]:
        """The pod that stands for each index: of several, the one created last."""
        pods = sorted(self.site.pods(self.name), key=_birth)
        return {int(pod["metadata"]["labels"][INDEX]): pod for pod in pods}

    def generation(self) -> int:
        """The job's current membership."""
        value = self.site.kube.get("trainingjobs", self.name, self.site.namespace)
        return value["status"]["generation"]

    def finish(self, *, seconds: float = HANG_SECONDS) -> Json:
        """Wait for the job's success; returns its status."""
        return self.site.finish(self.name, seconds=seconds)

    def outcome(self) -> Outcome:
        """What it came to. A step that was done twice must have come to the same twice.

        Raises:
            AssertionError: it did not.
        """
        losses: dict[int, str] = {}
        for step, loss in self.written():
            assert losses.setdefault(step, loss) == loss, (
                f"step {step}: {losses[step]}, then {loss}"
            )
        return Outcome(losses, weights_of(self.folder / f"step-{self.steps:08d}"))


def rehearse(
    site: Site,
    name: str,
    *,
    steps: int,
    faults: tuple[Fault, ...] = (),
    pace_seconds: float = 0.0,
    every_steps: int = 25,
    note_samples: bool = False,
    mutant: str | None = None,
    trainer: Json | None = None,
    **spec: Any,
) -> Rehearsal:
    """Submit a job and its plan."""
    rehearsal = Rehearsal(site=site, name=name, steps=steps, faults=faults)
    for folder in (rehearsal.folder, rehearsal.folder / "struck"):
        folder.mkdir()
        folder.chmod(0o777)
    plan = {
        "pace_seconds": pace_seconds,
        "note_samples": note_samples,
        "mutant": mutant,
        "faults": [asdict(fault) for fault in faults],
    }
    (rehearsal.folder / "rehearsal.json").write_text(json.dumps(plan))
    if pace_seconds:
        (rehearsal.folder / "paced").touch()
    site.submit(
        name,
        trainer={
            **BATCH,
            "steps": steps,
            "image": REHEARSAL_IMAGE,
            "overrides": OVERRIDES,
            **(trainer or {}),
        },
        checkpoint={"claimName": "checkpoints", "path": name, "everySteps": every_steps, "keep": 2},
        **spec,
    )
    return rehearsal


def _birth(pod: Json) -> int:
    return int(pod["metadata"]["labels"][BIRTH])


def weights_of(checkpoint: Path) -> dict[str, str]:
    """Digest of each piece of each tensor; the file's own metadata does not count."""
    manifest = Manifest.parse((checkpoint / MANIFEST_FILE).read_bytes())
    return {
        f"{name}@{file}": hashlib.sha256(tensor).hexdigest()
        for file in sorted(manifest.files)
        for name, tensor in _tensors(checkpoint / file)
    }


def _tensors(file: Path) -> Iterator[tuple[str, bytes]]:
    with safe_open(file, framework="numpy") as opened:
        for name in sorted(opened.keys()):
            yield name, opened.get_tensor(name).tobytes()


def _json_lines(path: Path, *, exact: bool = False) -> list[Json]:
    """The whole lines of a file; with `exact`, numbers that are not integers as their digits."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line, parse_float=str if exact else float) for line in whole.splitlines()]
