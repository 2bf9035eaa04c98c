"""The command line as people use it: the process, its output and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

import pytest

from tests.unit.cli.manifests import a_manifest, an_event, as_yaml, kubeconfig

pytestmark = pytest.mark.extended(keep=5)

ROOT = Path(__file__).parents[3]
JOB = "/apis/drumline.dev/v1alpha1/namespaces/team/trainingjobs/llama"
EVENTS = "/apis/events.k8s.io/v1/namespaces/team/events"
Answers = Mapping[str, tuple[int, Any]]


def drumline(
    *arguments: str, stdin: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    path = f"{ROOT / 'operator'}:{ROOT / 'trainer'}"
    return subprocess.run(
        [sys.executable, "-m", "drumline", *arguments],
        input=stdin,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@contextmanager
def api_server(folder: Path, answers: Answers) -> Iterator[tuple[Path, list[str]]]:
    """A server on loopback with these answers by path, as (kubeconfig, paths asked for)."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            code, body = answers.get(self.path.partition("?")[0], (404, missing("page")))
            raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield kubeconfig(folder, f"http://127.0.0.1:{server.server_port}"), asked
        finally:
            server.shutdown()
            thread.join()


def missing(what: str) -> dict[str, Any]:
    return {"kind": "Status", "code": 404, "reason": "NotFound", "message": f"{what} not found"}


def listed(*events: Any) -> dict[str, Any]:
    return {"kind": "EventList", "metadata": {"resourceVersion": "5"}, "items": list(events)}


def test_help_needs_the_standard_library_alone() -> None:
    script = (
        "import sys; from drumline.__main__ import main\n"
        "try: main(['report', '--help'])\n"
        "except SystemExit: print('LOADED', *{name.partition('.')[0] for name in sys.modules})"
    )
    environment = {"PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    shown, _, loaded = done.stdout.partition("LOADED ")
    assert "drumline report llama -n research" in shown
    heavy = {"pydantic", "aiohttp", "msgspec", "yaml", "kubernetes", "kopf", "asyncio", "torch"}
    assert not heavy & set(loaded.split())


def test_a_job_of_the_cluster_is_reported_with_its_events(tmp_path: Path) -> None:
    answers = {JOB: (200, a_manifest()), EVENTS: (200, listed(an_event()))}
    with api_server(tmp_path, answers) as (config, asked):
        done = drumline("report", "llama", "--kubeconfig", str(config), "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert (report["namespace"], report["name"], report["phase"]) == ("team", "llama", "Running")
    assert [event["reason"] for event in report["events"]] == ["MemberReplaced"]
    assert "fieldSelector=regarding.kind=TrainingJob,regarding.name=llama" in unquote(asked[1])


def test_the_kubeconfig_may_come_from_the_environment(tmp_path: Path) -> None:
    answers = {JOB: (200, a_manifest()), EVENTS: (200, listed())}
    with api_server(tmp_path, answers) as (config, _):
        done = drumline("report", "llama", "-n", "team", environment={"KUBECONFIG": str(config)})
    assert done.stdout.startswith("TrainingJob team/llama, as of ")


def test_events_that_may_not_be_read_are_missed_and_no_more(tmp_path: Path) -> None:
    forbidden = {"kind": "Status", "code": 403, "message": "user u cannot list events"}
    answers = {JOB: (200, a_manifest()), EVENTS: (403, forbidden)}
    with api_server(tmp_path, answers) as (config, _):
        done = drumline("report", "llama", "--kubeconfig", str(config))
    assert done.returncode == 0
    assert "Events are missing here" in done.stdout
    assert "user u cannot list events" in done.stdout


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            (404, missing('trainingjobs.drumline.dev "llama"')),
            "trainingjob 'llama' not found in namespace 'team'",
        ),
        (
            (404, missing("the server could not find the requested resource")),
            "the cluster has no TrainingJob resource; install Drumline's custom resources",
        ),
        (
            (403, {"kind": "Status", "code": 403, "message": "user u cannot get trainingjobs"}),
            "trainingjob team/llama: not allowed to read: user u cannot get trainingjobs",
        ),
        (
            (401, {"kind": "Status", "code": 401, "message": "Unauthorized"}),
            ("trainingjob team/llama: the API server rejects these credentials; log in again"),
        ),
        (
            (200, a_manifest(nodes="four")),
            (
                "this version of drumline cannot read trainingjob team/llama:"
                " spec.nodes: Input should be a valid integer, unable to parse string as an integer"
            ),
        ),
    ],
)
def test_what_the_cluster_does_not_give_ends_with_a_sentence(
    tmp_path: Path, answer: tuple[int, Any], message: str
) -> None:
    with api_server(tmp_path, {JOB: answer}) as (config, _):
        done = drumline("report", "llama", "--kubeconfig", str(config))
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"drumline: {message}\n")


def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with api_server(tmp_path, {}) as (config, _):
        pass
    done = drumline("report", "llama", "--kubeconfig", str(config))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        "drumline: trainingjob team/llama: the API server does not respond: "
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report",), "no job is given; use drumline report JOB [-n NAMESPACE], or --file FILE"),
        (("report", "-f", "none.yaml"), "none.yaml: No such file or directory"),
        (
            ("report", "-f", "-", "--context", "here"),
            "--file cannot be combined with --context or --kubeconfig; remove them",
        ),
        (("report", "llama", "--kubeconfig", "none"), "no usable kubeconfig: none does not exist"),
        (("report", "..", "--kubeconfig", "{config}"), "'..' is not a valid object name"),
        (
            ("report", "llama", "--kubeconfig", "{config}", "--context", "there"),
            "no usable kubeconfig: ",
        ),
    ],
)
def test_input_that_cannot_be_used_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    config = str(kubeconfig(tmp_path, "http://127.0.0.1:9"))
    done = drumline(*(argument.format(config=config) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"drumline: {message}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("--no-such",), ("reprot", "x"), ("report", "x", "-o", "pdf")]
)
def test_what_is_no_command_names_the_way_to_its_help(
    arguments: tuple[str, ...],
) -> None:
    done = drumline(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "See drumline" in done.stderr


def test_a_pipe_is_read_and_a_closed_pipe_is_no_error() -> None:
    text = as_yaml(a_manifest())
    done = drumline("report", "-f", "-", stdin=text)
    assert (done.returncode, done.stderr) == (0, "")
    reader, writer = os.pipe()
    os.close(reader)
    closed = subprocess.run(
        [sys.executable, "-m", "drumline", "report", "-f", "-"],
        input=text.encode(),
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}"},
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    os.close(writer)
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_the_operator_is_a_command_too_and_says_what_its_settings_lack() -> None:
    environment = {"DRUMLINE_HTTP_PORT": "many"}
    for arguments in ((), ("operator",)):
        done = drumline(*arguments, environment=environment)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("drumline: DRUMLINE_HTTP_PORT")


@pytest.mark.parametrize(
    ("process", "variable"),
    [("archiver", "DRUMLINE_ARCHIVE"), ("notifier", "DRUMLINE_NOTIFICATIONS")],
)
def test_a_process_of_the_cluster_names_the_setting_that_it_lacks(
    process: str, variable: str
) -> None:
    done = drumline(process)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"drumline: {variable} is not set: ")


def test_a_process_outside_of_a_cluster_says_so_in_one_line(tmp_path: Path) -> None:
    done = drumline("operator", environment={"HOME": str(tmp_path)})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("drumline: no way to the API server: ")
    assert done.stderr.count("\n") == 1


def test_a_notifier_whose_configuration_is_a_pipe_does_not_wait_for_it(tmp_path: Path) -> None:
    channels = tmp_path / "channels.yaml"
    os.mkfifo(channels)
    done = drumline("notifier", environment={"DRUMLINE_NOTIFICATIONS": str(channels)})
    assert done.returncode == 2
    assert "not a regular file" in done.stderr


def test_a_wrong_context_is_named_with_the_others(tmp_path: Path) -> None:
    config = str(kubeconfig(tmp_path, "http://127.0.0.1:9"))
    done = drumline("list", "--kubeconfig", config, "--context", "there")
    assert "contexts has no entry 'there', or several; there are " in done.stderr
    assert "; correct --context, or correct --kubeconfig" in done.stderr
