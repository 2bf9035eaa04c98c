"""A notebook's calls on an API server that answers: jobs, changes, waiting, interrupts."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import enumerate as running_threads
from threading import main_thread
from typing import Any

import pytest

import drumline_console.notebook as dl
from drumline_console.notebook.job import NotebookJob
from tests.unit.cli.manifests import kubeconfig
from tests.unit.cli.run.test_command import CORE, DRUMLINE, JOBS, Served, serving
from tests.unit.overview.objects import a_job, a_queue, at, running

LISTS = {"trainingqueues", "trainingjobs"}


@dataclass
class SmallCluster(Served):
    """Jobs as they are listed; each of them alone goes through the statuses of `Served`."""

    jobs: list[dict[str, Any]] = field(default_factory=lambda: [RUNS, WAITS])
    reads: list[str] = field(default_factory=list[str])
    at_read: Callable[[str], object] = str

    def read(self, path: str) -> tuple[int, Any]:
        self.reads.append(path)
        self.at_read(path)
        items = {
            f"{DRUMLINE}/trainingjobs": self.jobs
            + [self.created_job(body) for _, body in self.made],
            f"{DRUMLINE}/trainingqueues": [a_queue("research", gpus=8)],
            "/apis/scheduling.k8s.io/v1/priorityclasses": [],
        }
        if path in items:
            return 200, {"metadata": {"resourceVersion": "1"}, "items": items[path]}
        if path.startswith("/apis/events.k8s.io/"):
            return 200, {"metadata": {"resourceVersion": "1"}, "items": []}
        return super().read(path)

    @property
    def made(self) -> list[tuple[str, dict[str, Any]]]:
        return [(path, body) for path, body in self.created if path == JOBS]

    def created_job(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "metadata": {**body["metadata"], "uid": "uid-new"}, "status": {}}


RUNS = a_job("train", status=running(step=420, totalSteps=1000, loss="2.31", expectedEnd=at(5000)))
WAITS = a_job(
    "waits",
    status={
        "phase": "Pending",
        "reason": "QuotaExhausted",
        "message": "8 of 8 GPUs are held",
        "expectedStart": at(600),
    },
)


@contextmanager
def connected(folder: Path, served: Served) -> Iterator[dl.NotebookConnection]:
    with serving(served) as server, dl.connect(kubeconfig=kubeconfig(folder, server)) as cluster:
        yield cluster


@contextmanager
def interrupts() -> Iterator[None]:
    """Ctrl-C interrupts: in a shell's background it is ignored, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt(path: str) -> None:
    """As the notebook's stop button does, while a job is read alone."""
    if path.startswith(f"{JOBS}/"):
        identity = main_thread().ident
        assert identity is not None
        signal.pthread_kill(identity, signal.SIGINT)


def test_jobs_queues_and_reasons(tmp_path: Path) -> None:
    elsewhere = a_job("other", namespace="else")
    with connected(tmp_path, SmallCluster(jobs=[RUNS, WAITS, elsewhere])) as cluster:
        assert [row.name for row in cluster.jobs()] == ["train", "waits"]
        assert len(cluster.jobs(all_namespaces=True)) == 3
        assert len(cluster.jobs(queue="nobody's")) == 0
        assert [row.queue for row in cluster.queues()] == ["research"]
        assert [each.job for each in cluster.why("waits").card.holders] == ["team/train"]
        assert repr(cluster).endswith(", namespace team")


def test_a_job_has_its_figures(tmp_path: Path) -> None:
    with connected(tmp_path, SmallCluster()) as cluster:
        runs, waits = cluster.job("train"), cluster.job("waits")
        assert (runs.phase, runs.position, runs.steps) == ("Running", None, (420, 1000))
        assert (runs.loss, runs.is_over) == (2.31, False)
        assert runs.eta == datetime.fromisoformat(at(5000))
        assert (waits.phase, waits.position, waits.loss) == ("Pending", 1, None)
        assert waits.eta == datetime.fromisoformat(at(600)).astimezone(UTC)
        assert waits.rows()[0]["message"] == "8 of 8 GPUs are held"
        assert "team/waits" in waits._repr_html_()
        with pytest.raises(dl.NotAnswered, match=r"'none'.*'team'"):
            cluster.job("none")


async def test_a_cell_inside_a_running_event_loop_may_ask(tmp_path: Path) -> None:
    with connected(tmp_path, SmallCluster()) as cluster:
        assert len(cluster.jobs()) == 2
        assert len(cluster.jobs()) == 2  # credentials outlive a request: one loop for all


def test_wait_returns_at_the_end_and_shows_it(tmp_path: Path) -> None:
    ended = a_job("train", status={"phase": "Succeeded", "finishedAt": at(-1)})
    served = SmallCluster(statuses=[{"phase": "Running"}, {"phase": "Succeeded"}])
    with connected(tmp_path, served) as cluster:
        job = cluster.job("train")
        served.jobs = [ended]
        assert job.wait(timeout_seconds=300) is job
        assert (job.phase, job.is_over) == ("Succeeded", True)


def test_wait_gives_up_after_its_time(tmp_path: Path) -> None:
    with connected(tmp_path, SmallCluster(statuses=[{"phase": "Running"}])) as cluster:
        job = cluster.job("train")
        with pytest.raises(TimeoutError, match=r"team/train.*0"):
            job.wait(timeout_seconds=0)


class Restarting(SmallCluster):
    """It does not answer for a job alone the first so many times."""

    failures = 5

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if path == f"{JOBS}/train" and self.failures:
            self.failures -= 1
            return 503, {"kind": "Status", "code": 503, "message": "starting"}
        return super().answer(method, path, body)


def test_wait_outlasts_an_api_server_that_is_away(tmp_path: Path) -> None:
    served = Restarting(statuses=[{"phase": "Succeeded"}])
    with connected(tmp_path, served) as cluster:
        job = cluster.job("train")
        served.jobs = [a_job("train", status={"phase": "Succeeded"})]
        assert job.wait().is_over
    assert served.failures == 0


def test_wait_gives_up_on_an_api_server_that_stays_away_and_on_one_that_refuses(
    tmp_path: Path,
) -> None:
    refused = {("GET", f"{JOBS}/waits"): (403, "user u cannot get")}
    with connected(tmp_path, Restarting(refused=refused)) as cluster:
        hasty = replace(cluster._access, patience_seconds=0.0)
        job, other = (NotebookJob(hasty, hasty.job(name)) for name in ("train", "waits"))
        with pytest.raises(dl.NotAnswered, match=r"trainingjob team/train: .*starting"):
            job.wait()
        with pytest.raises(dl.NotAnswered, match="not allowed to read: user u cannot get"):
            other.wait()


def test_an_interrupt_of_wait_lets_the_job_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = SmallCluster(statuses=[{"phase": "Running"}])
    with connected(tmp_path, served) as cluster:
        job = cluster.job("train")
        served.at_read = interrupt
        with interrupts():
            assert job.wait() is job
        served.at_read = str
        assert not job.is_over
        assert capsys.readouterr().out.startswith("train continues in the background")
        assert (served.patched, served.deleted) == ([], [])
        assert job.refresh().phase == "Running"  # the connection is as good as before


def test_an_interrupt_of_following_ends_it_and_returns_what_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = SmallCluster(statuses=[{"phase": "Running"}])
    with connected(tmp_path, served) as cluster:
        job = cluster.job("train")
        singles: list[str] = []

        def second(path: str) -> None:
            if path == f"{JOBS}/train":
                singles.append(path)
                if len(singles) == 2:
                    interrupt(path)

        served.at_read = second
        with interrupts():
            log = job.logs(follow=True)
        shown = capsys.readouterr().out.splitlines()
        assert "Running" in shown
        assert shown[-1].startswith("train continues in the background")
        assert len(log.lines) == 4


def test_logs_are_merged_by_time(tmp_path: Path) -> None:
    with connected(tmp_path, SmallCluster(statuses=[{"phase": "Running"}])) as cluster:
        log = cluster.job("train").logs()
        assert repr(log).splitlines()[0] == "[0] line at 00 of 0"
        assert [row["index"] for row in log.rows()] == ["0", "1", "0", "1"]


def test_following_prints_lines_until_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = SmallCluster(statuses=[{"phase": "Running"}, {"phase": "Succeeded"}])
    with connected(tmp_path, served) as cluster:
        cluster.job("train").logs(follow=True)
    shown = capsys.readouterr().out.splitlines()
    assert {"Running", "Succeeded", "[0] line at 00 of 0", "[1] line at 05 of 1"} <= {*shown}


def test_stop_resume_and_delete_name_this_very_job(tmp_path: Path) -> None:
    bodies: list[Any] = []

    class Recording(SmallCluster):
        def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
            if method == "DELETE":
                bodies.append(body)
            return super().answer(method, path, body)

    served = Recording(statuses=[{"phase": "Suspended", "reason": "SuspendedByUser"}])
    with connected(tmp_path, served) as cluster:
        job = cluster.job("train")
        assert job.stop().resume() is job
        job.delete()
    assert [body for _, body in served.patched] == [
        {"spec": {"suspend": True}},
        {"spec": {"suspend": False}},
    ]
    assert served.deleted == [f"{JOBS}/train"]
    assert bodies[0]["preconditions"] == {"uid": "uid-train"}


def test_what_the_cluster_refuses_is_a_sentence(tmp_path: Path) -> None:
    refusal = (403, "user u cannot patch")
    served = SmallCluster(statuses=[{}], refused={("PATCH", f"{JOBS}/train"): refusal})
    with connected(tmp_path, served) as cluster:
        job = cluster.job("train")
        with pytest.raises(dl.NotAnswered, match="not allowed to stop: user u cannot patch"):
            job.stop()


def test_run_stores_the_code_and_returns_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)\n")
    served = SmallCluster()
    with connected(tmp_path, served) as cluster:
        job = cluster.run(
            ["python", "train.py"],
            nodes=2,
            gpus=8,
            folder=code,
            image="any:1",
            env={"LR": "3e-4"},
            resources={"cpu": "8", "memory": "64Gi"},
            after=["train"],
        )
    (stored, _), (_, made) = served.created
    assert stored == f"{CORE}/configmaps"
    assert job.name == made["metadata"]["name"]
    assert job.name.startswith("train-")
    spec = made["spec"]
    assert (spec["nodes"], spec["gpusPerNode"], spec["queue"]) == (2, 8, "research")
    assert spec["template"]["command"] == ["python", "train.py"]
    assert spec["template"]["env"] == [{"name": "LR", "value": "3e-4"}]
    assert spec["after"] == [{"job": "train", "condition": "Succeeded"}]
    assert capsys.readouterr().out == ""


def test_without_a_folder_the_image_has_the_code(tmp_path: Path) -> None:
    served = SmallCluster()
    with connected(tmp_path, served) as cluster:
        cluster.run(["python", "x.py"], folder=None, image="any:1", queue="research")
    assert [path for path, _ in served.created] == [JOBS]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"command": "python train.py"}, r"the command must be a list: \['python', 'train.py'\]"),
        (
            {"command": ["python"], "imag": "any:1"},
            "no option 'imag'; its options are queue, image",
        ),
        ({"command": ["python"], "image": "any:1", "env": ["A=1"]}, "env is a dict"),
        ({"command": ["python"], "image": "any:1", "folder": "/nonexistent"}, "nonexistent"),
    ],
)
def test_what_cannot_be_run_is_said_before_the_cluster_is_asked(
    tmp_path: Path, arguments: dict[str, Any], sentence: str
) -> None:
    served = SmallCluster()
    with connected(tmp_path, served) as cluster, pytest.raises(dl.BadInput, match=sentence):
        cluster.run(**arguments)
    assert served.reads == []


def test_a_closed_connection_says_so_and_leaves_no_thread(tmp_path: Path) -> None:
    with connected(tmp_path, SmallCluster()) as cluster:
        cluster.close()
        with pytest.raises(RuntimeError, match="connect again"):
            cluster.jobs()
    assert [thread for thread in running_threads() if thread.name == "drumline-notebook"] == []


def test_a_connection_that_is_dropped_leaves_no_thread(tmp_path: Path) -> None:
    dl.connect(kubeconfig=kubeconfig(tmp_path, "http://127.0.0.1:9"))
    assert [thread for thread in running_threads() if thread.name == "drumline-notebook"] == []


def test_without_a_kubeconfig_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(dl.BadInput, match="no usable kubeconfig"):
        dl.connect(kubeconfig=tmp_path / "none", context="none")
