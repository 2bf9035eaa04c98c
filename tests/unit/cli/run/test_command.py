"""`drumline run` and what follows it: a folder, and an API server that answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from drumline_cli.exit_codes import CommandExit
from drumline_cli.jobs import follow
from drumline_cli.program import main
from tests.texts import Golden, missing
from tests.unit.cli.manifests import kubeconfig

ROOT = Path(__file__).parents[4]
CORE = "/api/v1/namespaces/team"
DRUMLINE = "/apis/drumline.dev/v1alpha1"
JOBS = f"{DRUMLINE}/namespaces/team/trainingjobs"
PODS: dict[str, Any] = {
    "metadata": {"resourceVersion": "9"},
    "items": [
        {
            "metadata": {"name": f"train-{index}-g1", "labels": {"drumline.dev/index": str(index)}},
            "status": {"containerStatuses": [{"name": "trainer", "state": {"terminated": {}}}]},
        }
        for index in (1, 0)
    ],
}


@dataclass
class Served:
    """An API server of one namespace: what is created is kept, a job goes through its phases."""

    statuses: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    spec: dict[str, Any] = field(default_factory=dict[str, Any])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    pods: dict[str, Any] = field(default_factory=lambda: PODS)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    queries: list[str] = field(default_factory=list[str])
    refused: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    patches_miss: bool = False
    queues: list[str] = field(default_factory=lambda: ["research"])
    created: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    patched: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if refused := self.refused.get((method, path)):
            code, message = refused
            return code, {"kind": "Status", "code": code, "reason": message, "message": message}
        metadata = {"uid": f"uid-{len(self.created)}", "resourceVersion": "1"}
        match method:
            case "POST":
                self.created.append((path, body))
                return 201, {"metadata": {**body["metadata"], **metadata}}
            case "PATCH" if self.patches_miss:
                return 404, {"kind": "Status", "code": 404, "message": "not found"}
            case "PATCH":
                self.patched.append((path, body))
                return 200, {"metadata": metadata}
            case "DELETE":
                self.deleted.append(path)
                return 200, {}
            case _:
                return self.read(path)

    def read(self, path: str) -> tuple[int, Any]:
        if path == f"{DRUMLINE}/trainingqueues":
            items = [{"metadata": {"name": name}} for name in self.queues]
            return 200, {"metadata": {"resourceVersion": "1"}, "items": items}
        if path == f"{CORE}/pods":
            return 200, self.pods
        if path.startswith(f"{CORE}/secrets/"):
            name = path.rpartition("/")[2]
            return 200, {"metadata": {"name": name}, "data": self.secrets[name]}
        if path.endswith("/log"):
            index = path.split("-")[-2]
            times = [f"2026-11-22T10:00:0{second}.000000000Z" for second in (int(index), 5)]
            return 200, "".join(f"{at} line at {at[17:19]} of {index}\n" for at in times)
        if path.startswith(JOBS):
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            metadata = {"name": "train", "namespace": "team", "uid": "uid-1", **self.metadata}
            spec = {"queue": "research", "trainer": {}, **self.spec}
            kind = {"apiVersion": "drumline.dev/v1alpha1", "kind": "TrainingJob"}
            return 200, {**kind, "metadata": metadata, "spec": spec, "status": status}
        return 404, {"kind": "Status", "code": 404, "message": "page not found"}


@contextmanager
def serving(served: Served) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"null")
            path, _, query = self.path.partition("?")
            served.queries.append(f"{self.command} {query}")
            code, answer = served.answer(self.command, path, body)
            raw = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 - the base's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    output: str
    error: str


Drumline = Callable[..., Done]


@pytest.fixture
def drumline(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Drumline:
    """A command in the folder; without a server there is no kubeconfig."""
    monkeypatch.chdir(folder)
    for name in ("KUBERNETES_SERVICE_HOST", "DRUMLINE_QUEUE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DRUMLINE_IMAGE", "pytorch/pytorch:2")

    def run(command: str, *arguments: str, served: Served | None = None) -> Done:
        with serving(served or Served()) as server:
            config = kubeconfig(folder.parent, server) if served else Path("/nonexistent")
            code = main([command, "--kubeconfig", str(config), *arguments])
        shown = capsys.readouterr()
        return Done(code=code, output=shown.out, error=shown.err)

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n")
    return folder


RUN = ("run", "--name", "train", "--", "python", "train.py", "--lr", "3e-4")


def test_a_dry_run_is_text_for_kubectl_and_asks_no_cluster(drumline: Drumline) -> None:
    done = drumline("run", "--dry-run", "-q", "research", *RUN[1:])
    assert (done.code, done.error) == (0, "")
    code, job = yaml.safe_load_all(done.output)
    assert (code["kind"], job["kind"]) == ("ConfigMap", "TrainingJob")
    assert job["spec"]["template"]["code"]["configMaps"] == [code["metadata"]["name"]]
    assert code["metadata"]["name"].startswith("train-code-")  # no job of others takes it along
    assert '- "3e-4"' in done.output  # to kubectl's reader a number
    assert "kubectl apply --server-side" in done.output
    again = drumline("run", "--dry-run", "-q", "research", *RUN[1:])
    assert again.output == done.output


def test_the_jobs_of_a_sweep_share_their_code_and_say_how_to_see_them(
    drumline: Drumline, golden: Golden
) -> None:
    served = Served()
    command = ("--name", "train", "--sweep", "lr=1,2", "--", "python", "train.py", "{lr}")
    done = drumline("run", *command, served=served)
    assert (done.code, done.error) == (0, "")
    jobs = [body for path, body in served.created if path == JOBS]
    assert [job["spec"]["template"]["command"][-1] for job in jobs] == ["1", "2"]
    assert len({tuple(job["spec"]["template"]["code"]["configMaps"]) for job in jobs}) == 1
    owners = [patch["metadata"]["ownerReferences"][0]["name"] for _, patch in served.patched]
    assert owners == ["train-0", "train-1"]
    golden("sweep.txt", done.output)
    *created, see = done.output.splitlines()
    assert created == [
        "trainingjob team/train-0: 1 x 1 GPUs, lr=1",
        "trainingjob team/train-1: 1 x 1 GPUs, lr=2",
    ]
    assert not missing(see, "team", "drumline sweep train")
    dry = drumline("run", "--dry-run", "-q", "research", *command)
    kinds = [each["kind"] for each in yaml.safe_load_all(dry.output)]
    assert kinds == ["ConfigMap", "TrainingJob", "TrainingJob"]


def test_the_code_is_stored_the_job_owns_it_and_its_logs_are_followed(drumline: Drumline) -> None:
    waits = {
        "phase": "Pending",
        "message": "research: 8 of 8 GPUs are in use",
        "expectedStart": "2026-11-22T12:00:00Z",
        "expectedStartBy": "2026-11-22T14:00:00Z",
    }
    served = Served(statuses=[waits, {"phase": "Running"}, {"phase": "Succeeded"}])
    done = drumline(*RUN, served=served)
    assert (done.code, done.error) == (0, "")
    (stored, code), (asked, job) = served.created
    assert (stored, asked) == (f"{CORE}/configmaps", JOBS)
    assert job["spec"]["queue"] == "research"  # the only one
    ((patched, patch),) = served.patched
    assert patched == f"{CORE}/configmaps/{code['metadata']['name']}"
    assert patch["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "TrainingJob",
            "name": "train",
            "uid": "uid-1",
        }
    ]
    assert not missing(
        done.output, "research", "8 of 8 GPUs", "2026-11-22T12:00:00Z", "2026-11-22T14:00:00Z"
    )
    assert sorted(line for line in done.output.splitlines() if line.startswith("[")) == [
        *("[0] line at 00 of 0", "[0] line at 05 of 0", "[1] line at 01 of 1"),
        "[1] line at 05 of 1",
    ]
    assert job["spec"]["template"]["code"]["digest"][:19] in done.output


def test_a_job_that_failed_says_why_and_so_does_the_exit_code(drumline: Drumline) -> None:
    served = Served(statuses=[{"phase": "Failed", "message": "rank 3: \x1b[2Jno such file"}])
    done = drumline(*RUN, served=served)
    assert done.code == CommandExit.JOB_FAILED
    assert not missing(done.output, "Failed", "rank 3", "2Jno")


def test_code_that_is_stored_is_used_and_stays_where_the_job_is_refused(drumline: Drumline) -> None:
    refused = {
        ("POST", f"{CORE}/configmaps"): (409, "AlreadyExists"),
        ("POST", JOBS): (403, "exceeded quota: jobs"),
    }
    served = Served(refused=refused)
    done = drumline(*RUN, served=served)
    assert done.code == 1
    assert "not allowed to create: exceeded quota: jobs" in done.error
    assert served.deleted == []


def test_code_that_was_stored_for_a_refused_job_is_taken_back(drumline: Drumline) -> None:
    served = Served(refused={("POST", JOBS): (422, "spec.nodes: Invalid value")})
    done = drumline(*RUN, served=served)
    assert "spec.nodes: Invalid value" in done.error
    ((_, code),) = served.created
    assert served.deleted == [f"{CORE}/configmaps/{code['metadata']['name']}"]


@pytest.mark.parametrize(
    ("served", "sentence"),
    [
        (Served(queues=["b", "a"]), "this cluster has a, b; set the queue with --queue"),
        (Served(queues=[]), "no TrainingQueue; ask its administrator"),
        (Served(refused={("GET", f"{DRUMLINE}/trainingqueues"): (404, "x")}), "custom resources"),
        (
            Served(refused={("POST", f"{CORE}/configmaps"): (403, "user u cannot create")}),
            "not allowed to store: user u cannot create",
        ),
        (
            Served(refused={("POST", JOBS): (404, 'namespaces "team" not found')}),
            "'team' does not exist",
        ),
    ],
)
def test_what_the_cluster_lacks_is_a_sentence(
    drumline: Drumline, served: Served, sentence: str
) -> None:
    done = drumline(*RUN, served=served)
    assert done.code in {1, 2}
    assert sentence in done.error
    assert "Traceback" not in done.error


def test_without_a_kubeconfig_nothing_is_tried(drumline: Drumline) -> None:
    done = drumline(*RUN)
    assert done.code == 2
    assert not missing(done.error, "KUBECONFIG", "--kubeconfig")


def test_logs_are_merged_by_time(drumline: Drumline) -> None:
    done = drumline("logs", "train", served=Served(statuses=[{"phase": "Running"}]))
    assert done.output.splitlines() == [
        *("[0] line at 00 of 0", "[1] line at 01 of 1"),
        *("[0] line at 05 of 0", "[1] line at 05 of 1"),
    ]


@pytest.mark.parametrize(("patience", "code"), [(60.0, 0), (0.0, 1)])
def test_following_goes_on_after_an_api_server_that_was_away(
    drumline: Drumline, monkeypatch: pytest.MonkeyPatch, patience: float, code: int
) -> None:
    monkeypatch.setattr(follow, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(follow, "PATIENCE_SECONDS", patience)

    class RestartedServer(Served):
        asked = 0

        def read(self, path: str) -> tuple[int, Any]:
            self.asked += path.startswith(JOBS)
            if 1 < self.asked <= 7:
                return 503, {"kind": "Status", "code": 503, "message": "is being restarted"}
            return super().read(path)

    served = RestartedServer(statuses=[{"phase": "Running"}, {"phase": "Succeeded"}])
    done = drumline("logs", "train", "-f", served=served)
    assert done.code == code
    assert ("is being restarted" in done.error) is (code == 1)


def test_an_api_server_that_is_away_at_the_first_look_is_said_at_once(drumline: Drumline) -> None:
    refused = {("GET", f"{JOBS}/train"): (503, "is being restarted")}
    done = drumline("logs", "train", "-f", served=Served(statuses=[{}], refused=refused))
    assert (done.code, "is being restarted" in done.error) == (1, True)


def test_stop_resume_and_delete(drumline: Drumline) -> None:
    served = Served(statuses=[{"phase": "Running"}])
    for command, suspended, words in (
        ("stop", False, "after it has saved"),
        ("resume", True, "queued again"),
        ("delete", True, "is deleted"),
    ):
        served.spec = {"suspend": suspended}
        done = drumline(command, "train", served=served)
        assert (done.code, done.error) == (0, "")
        assert words in done.output
    bodies = [body for _, body in served.patched]
    assert bodies == [{"spec": {"suspend": True}}, {"spec": {"suspend": False}}]
    assert served.deleted == [f"{JOBS}/train"]
    writes = [query for query in served.queries if query.startswith(("PATCH", "POST"))]
    assert all("fieldValidation=Strict" in query for query in writes)


@pytest.mark.parametrize(
    ("command", "phase", "suspended", "figures"),
    [
        ("stop", "Succeeded", False, ("ended (Succeeded)", "drumline clone train")),
        ("stop", "Failed", False, ("ended (Failed)", "drumline retry train")),
        ("stop", "Suspended", True, ("suspended already", "drumline resume train -n team")),
        ("resume", "Succeeded", False, ("ended (Succeeded)", "drumline clone train")),
        ("resume", "Failed", True, ("ended (Failed)", "drumline retry train")),
        ("resume", "Running", False, ("not suspended", "Running")),
        ("retry", "Running", False, ("has not failed", "Running", "drumline stop train -n team")),
        ("hold", "Succeeded", False, ("ended (Succeeded)", "never start again")),
        ("retry", "Succeeded", False, ("has not failed", "drumline clone train")),
        ("retry", "Suspended", True, ("has not failed", "drumline resume train")),
    ],
)
def test_a_job_that_cannot_be_stopped_resumed_or_retried_is_left_alone(
    drumline: Drumline, command: str, phase: str, suspended: bool, figures: tuple[str, ...]
) -> None:
    served = Served(statuses=[{"phase": phase}], spec={"suspend": suspended})
    done = drumline(command, "train", served=served)
    assert (done.code, done.output) == (1, "")
    assert not missing(done.error, "trainingjob team/train", *figures)
    assert served.patched == served.created == []


def test_a_retry_continues_from_the_folder_of_the_failed_job(drumline: Drumline) -> None:
    sweep = {"drumline.dev/sweep": "s"}
    parameters = {"drumline.dev/parameters": "lr=1", "other": "x"}
    served = Served(
        statuses=[{"phase": "Failed"}],
        spec={"checkpoint": {"claimName": "runs"}, "suspend": True},
        metadata={"labels": sweep, "annotations": parameters},
    )
    done = drumline("retry", "train", "--name", "again", served=served)
    assert (done.code, done.error) == (0, "")
    assert not missing(done.output, "team/again", "train-uid-1")
    ((path, job),) = served.created
    assert path == JOBS
    kept = {"claimName": "runs", "path": "train-uid-1", "continueFrom": "train"}
    assert job["spec"]["checkpoint"] == kept
    assert "suspend" not in job["spec"]
    assert job["metadata"]["labels"] == sweep
    assert job["metadata"]["annotations"] == {"drumline.dev/parameters": "lr=1"}
    named = drumline("retry", "train", "--name", "b", "-o", "name", served=served)
    assert named.output == "trainingjob.drumline.dev/b\n"


def test_a_clone_with_an_unknown_field_is_refused(drumline: Drumline) -> None:
    served = Served(statuses=[{"phase": "Failed"}])
    done = drumline("clone", "train", "--set", "node=1", served=served)
    assert (done.code, served.created) == (2, [])
    assert not missing(done.error, "spec.node", "did you mean nodes?")
    before = drumline("clone", "train", "--set", "nodes")
    assert "want path=value" in before.error


def test_logs_show_init_containers_that_have_begun(drumline: Drumline) -> None:
    def pod(index: int, main: dict[str, Any], **init: dict[str, Any]) -> dict[str, Any]:
        named = [{"name": name.replace("_", "-"), "state": state} for name, state in init.items()]
        return {
            "metadata": {"name": f"train-{index}-g1", "labels": {"drumline.dev/index": str(index)}},
            "status": {
                "containerStatuses": [{"name": "trainer", "state": main}],
                "initContainerStatuses": named,
            },
        }

    failed = {"terminated": {"exitCode": 64}}
    ours = {"terminated": {"exitCode": 0}}
    pods = [
        pod(0, {"waiting": {}}, drumline_agent=ours, requirements=failed),
        pod(1, {"waiting": {}}, requirements={"waiting": {}}),
    ]
    served = Served(
        statuses=[{"phase": "Starting"}],
        pods={"metadata": {"resourceVersion": "1"}, "items": pods},
    )
    done = drumline("logs", "train", served=served)
    lines = done.output.splitlines()
    assert lines == ["[0] [requirements] line at 00 of 0", "[0] [requirements] line at 05 of 0"]
    served.pods = {"metadata": {"resourceVersion": "1"}, "items": []}
    empty = drumline("logs", "train", served=served)
    assert (empty.code, empty.output) == (0, "")
    assert not missing(empty.error, "no logs", "Starting")


def test_all_keys_of_a_secret_are_read_and_their_values_are_not_kept(drumline: Drumline) -> None:
    served = Served(secrets={"tokens": {"HF_TOKEN": "c2VjcmV0", "OTHER": "eA=="}})
    done = drumline("run", "--secret", "tokens", "-o", "name", *RUN[1:], served=served)
    assert (done.code, done.output) == (0, "trainingjob.drumline.dev/train\n")
    job = served.created[-1][1]
    assert [each["name"] for each in job["spec"]["template"]["env"]] == ["HF_TOKEN", "OTHER"]
    assert "c2VjcmV0" not in json.dumps(job)
    dry = drumline("run", "--dry-run", "-q", "a", "--secret", "tokens", *RUN[1:])
    assert (dry.code, dry.output) == (2, "")
    assert "--secret tokens=KEY" in dry.error


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("run", "--", "python", "trian.py"), "did you mean train.py?"),
        (("run", "--", "./nothere.sh"), "./nothere.sh is not among the files"),
        (("run", "--", "bash", "nothere.sh"), "nothere.sh is not among the files"),
        (("run", "--", "./nothere"), "./nothere is not among the files"),
        (("run", "--", "python", "-X", "dev", "-u", "trian.py"), "did you mean train.py?"),
        (("run", "--", "torchrun", "--nproc-per-node", "8", "trian.py"), "did you mean train.py?"),
        (("run", "--folder", "train.py", "--", "python", "train.py"), "train.py: not a folder"),
        (("run", "--", "python train.py"), "remove the quotes"),
        (("run", "--", "LR=1", "python", "train.py"), "-e LR=1"),
        (("run", "--", "cd", "src", "&&", "python", "train.py"), "bash -c"),
        (("run", "-N2", "--", "torchrun", "--nnodes=4", "train.py"), "differs from --nodes 2"),
        (("run", "--", "torchrun", "--nnodes", "4", "train.py"), "differs from --nodes 1"),
        (
            ("run", "-N2", "--", "python", "-m", "torch.distributed.run", "--standalone", "a.py"),
            "2",
        ),
        (("run", "--resources", "cpu=1,cpu=2", "--", "python", "train.py"), "given twice"),
        (("run", "-G0", "--", "python", "train.py"), "--gpus 0"),
        (("run", "--resources", "memory=64GB", "--", "python", "train.py"), "write 64Gi or 512Mi"),
        (("run", "--resources", "cpu=eight", "--", "python", "train.py"), "write 8 or 500m"),
        (("run", "--resources", "mem=64Gi", "--", "python", "train.py"), "did you mean memory?"),
        (("run", "--resources", "gpu=1", "--", "python", "train.py"), "'gpu' is not a resource"),
        (("run", "--", "train.py"), "train.py is a file, not a program; write python train.py"),
        (("run", "--", "./train.py"), "./train.py is not executable; write python train.py"),
        (("run", "--name", "My_Job", "--", "python", "train.py"), "metadata.name"),
        (("logs", "train", "-f", "--rank", "1"), "--follow"),
        (("cp", "a", "b"), "want one side of cp"),
    ],
)
def test_mistakes_are_named_before_the_kubeconfig_is_read(
    drumline: Drumline, words: tuple[str, ...], problem: str
) -> None:
    done = drumline(*words)
    assert (done.code, done.output) == (2, "")
    assert problem in done.error
    assert "kubeconfig" not in done.error


@pytest.mark.parametrize(
    "command",
    [
        ("torchrun", "--nnodes", "2", "train.py", "--nnodes", "9"),
        ("torchrun", "--nnodes=1:4", "-m", "package", "--standalone"),
        ("torchrun", "--nnodes=$(NNODES)", "train.py"),
        ("python", "-m", "package", "no.py"),
        ("bash", "-c", "torchrun --nnodes 4 train.py"),
        ("python", "/opt/torch/distributed/run.py", "train.py"),
        ("python", "-c", "print(1)", "no.py"),
        ("accelerate", "launch", "--config_file", "a.yaml", "train.py"),
        ("python", "/opt/no.py"),
    ],
)
def test_commands_without_a_mistake_are_taken(drumline: Drumline, command: tuple[str, ...]) -> None:
    done = drumline("run", "-N2", "--dry-run", "-q", "a", "--", *command)
    assert (done.code, done.error) == (0, "")


def test_a_job_that_was_suspended_for_idle_gpus_is_resumed_by_a_change(drumline: Drumline) -> None:
    suspended = {"phase": "Suspended", "reason": "IdleGpus"}
    served = Served(statuses=[suspended])
    done = drumline("resume", "train", served=served)
    assert (done.code, done.error) == (0, "")
    assert [body["spec"]["suspend"] for _, body in served.patched] == [True, False]


def test_hold_sets_and_takes_back_for_how_long_pods_stay(drumline: Drumline) -> None:
    served = Served(statuses=[{}])
    for seconds, words in (("600", "stay for 600 s with"), ("0", "end immediately again")):
        done = drumline("hold", "train", "--seconds", seconds, served=served)
        assert (done.code, done.error) == (0, "")
        assert words in done.output
    bodies = [body for _, body in served.patched]
    assert bodies == [{"spec": {"recovery": {"holdSeconds": each}}} for each in (600, None)]
    with pytest.raises(SystemExit):
        drumline("hold", "train", "--seconds", "90000", served=served)


def test_code_that_is_collected_in_between_is_stored_again_with_its_owner(
    drumline: Drumline,
) -> None:
    served = Served(statuses=[{"phase": "Succeeded"}], patches_miss=True)
    assert drumline(*RUN, served=served).code == 0
    (_, _), _, (path, again) = served.created
    assert path == f"{CORE}/configmaps"
    (owner,) = again["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("TrainingJob", "train")


def test_an_interrupt_leaves_the_job_alone(folder: Path) -> None:
    served = Served(statuses=[{"phase": "Pending", "message": "no room"}])
    with serving(served) as server:
        config = kubeconfig(folder.parent, server)
        command = [sys.executable, "-m", "drumline", "logs", "-f", "train"]
        with subprocess.Popen(
            [*command, "--kubeconfig", str(config)],
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}"},
            stdout=subprocess.PIPE,
            text=True,
            # a shell in whose background the tests run has it ignored, and children inherit that
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "Pending: no room\n"
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
    assert process.returncode == 0
    assert "continues in the background" in rest
    assert "drumline stop train -n team" in rest
    assert served.deleted == served.patched == []
