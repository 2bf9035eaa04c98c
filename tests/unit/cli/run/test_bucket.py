"""A folder in a bucket: stored once, fetched and unpacked by the program of the init container."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from drumline_api.trainingjob import TrainingJobSpec
from drumline_cli.arguments import parser
from drumline_cli.errors import BadInput, NotAnswered
from drumline_cli.run.bucket import LIMITS, CodeInBucket, code_in_bucket
from drumline_cli.run.manifests import job_manifest
from drumline_cli.run.pack import pack
from drumline_cli.run.request import run_request
from tests.moto_store import client_of, moto_store
from tests.texts import missing

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "which-no-message-may-hold"}
BOTO = {name.lower(): value for name, value in KEYS.items()}
SESSION = {"AWS_SESSION_TOKEN": "of-a-session"}
PLACE = "s3://code/team/a"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_store("code", BOTO) as address:
        yield address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print('trains')\n")
    (folder / "pkg" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "pkg" / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("pkg/run.sh")
    return folder


@pytest.fixture
def code(folder: Path, endpoint: str) -> CodeInBucket:
    return code_in_bucket(PLACE, folder=folder, secret="", environment=outside(endpoint))


def outside(endpoint: str) -> dict[str, str]:
    """The environment of the user's machine."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {**mine, **KEYS, "AWS_ENDPOINT_URL": endpoint}


def fetch(code: CodeInBucket, target: Path, **variables: str) -> tuple[int, str]:
    """Run the init container's program; its exit code and what it says."""
    (container,) = code.within({"image": "any:1"})["initContainers"]
    program, (_, *rest) = container["command"][2], container["command"][3:]
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, str(target / "folder"), *rest],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def spec_of(folder: Path, environment: dict[str, str], *arguments: str) -> TrainingJobSpec:
    options = parser("drumline").parse_args(
        ["run", "--image", "any:1", "--folder", str(folder), *arguments]
    )
    options.command_line = ["python", "train.py"]
    request = run_request(options, environment, queue="q", namespace=None, letters="abcd")
    return TrainingJobSpec.model_validate(job_manifest(request, None)["spec"])


def test_a_pod_gets_the_very_files_that_were_packed(
    code: CodeInBucket, endpoint: str, tmp_path: Path
) -> None:
    assert code.store(outside(endpoint))
    assert not code.store(outside(endpoint)), "equal code is stored once"
    (tmp_path / "code").mkdir()
    for _ in range(2):  # a sandbox that is made again runs it again
        assert fetch(code, tmp_path / "code", **KEYS) == (0, "")
    unpacked = tmp_path / "code" / "folder"
    assert (unpacked / "train.py").read_text() == "print('trains')\n"
    assert os.access(unpacked / "pkg" / "run.sh", os.X_OK)
    assert (unpacked / "link").readlink() == Path("pkg/run.sh")
    assert not (tmp_path / "code" / ".packed").exists()


def test_other_bytes_under_the_name_are_refused(
    code: CodeInBucket, folder: Path, endpoint: str, tmp_path: Path
) -> None:
    (folder / "train.py").write_text("print('another')\n")
    other = replace(code, packed=pack(folder, ["train.py"], limits=LIMITS))
    client = client_of(endpoint, BOTO)
    with closing(client):
        client.put_object(Bucket="code", Key=code.key, Body=other.packed.content)
        status, said = fetch(code, tmp_path, **KEYS)
        client.delete_object(Bucket="code", Key=code.key)
    assert status == 64
    assert f"its digest is {other.packed.digest}, the job names {code.packed.digest}" in said
    assert not (tmp_path / "folder").exists()


def test_what_is_not_there_is_said_at_once(code: CodeInBucket, tmp_path: Path) -> None:
    nowhere = replace(code, bucket="code", prefix="nowhere")
    status, said = fetch(nowhere, tmp_path, **KEYS)
    assert status == 64
    assert not missing(said, "404")
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in said


@pytest.fixture
def strange() -> Iterator[ThreadingHTTPServer]:
    """A store that answers each request by the next of its codes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server = self.server
            assert isinstance(server, Store)
            server.seen.append({name.lower(): value for name, value in self.headers.items()})
            code, body = server.answers.pop(0)
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002, ARG002
            return

    class Store(ThreadingHTTPServer):
        answers: list[tuple[int, bytes]] = []  # noqa: RUF012 - set by each test
        seen: list[dict[str, str]] = []  # noqa: RUF012 - set by each test

    server = Store(("127.0.0.1", 0), Handler)
    server.seen = []
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def at(
    code: CodeInBucket, server: ThreadingHTTPServer, *answers: tuple[int, bytes]
) -> CodeInBucket:
    vars(server)["answers"] = list(answers)
    return replace(code, endpoint=f"http://127.0.0.1:{server.server_address[1]}")


def signature(code: CodeInBucket, headers: dict[str, str]) -> str:
    """What botocore signs such a request with."""
    signed = ("host", "x-amz-date", "x-amz-content-sha256", "x-amz-security-token")
    request = AWSRequest(
        method="GET",
        url=f"{code.endpoint}/{code.bucket}/{code.key}",
        headers={name: headers[name] for name in signed},
    )
    request.context["timestamp"] = headers["x-amz-date"]
    auth = S3SigV4Auth(Credentials(*KEYS.values(), *SESSION.values()), "s3", "us-east-1")
    return auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)


def test_a_store_that_fails_once_is_asked_again(
    code: CodeInBucket, strange: ThreadingHTTPServer, tmp_path: Path
) -> None:
    there = at(code, strange, (503, b""), (200, code.packed.content))
    assert fetch(there, tmp_path, **KEYS) == (0, "")


def test_a_key_that_may_not_read_is_said_and_not_shown(
    code: CodeInBucket, strange: ThreadingHTTPServer, tmp_path: Path
) -> None:
    there = at(code, strange, (403, b"secret details"))
    status, said = fetch(there, tmp_path, **KEYS, **SESSION)
    assert (status, "answers 403; has the pod a key" in said) == (64, True)
    (headers,) = vars(strange)["seen"]
    assert headers["authorization"].endswith(f"Signature={signature(there, headers)}")
    assert "x-amz-security-token" in headers["authorization"]


def test_more_than_any_folder_is_not_read(
    code: CodeInBucket, strange: ThreadingHTTPServer, tmp_path: Path
) -> None:
    there = at(code, strange, (200, b"x" * 4096))
    (container,) = there.within({"image": "any:1"})["initContainers"]
    command = [*container["command"][3:-1], "1000"]
    done = subprocess.run(
        [sys.executable, "-c", container["command"][2], str(tmp_path / "folder"), *command[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64
    assert "it is over 1000 bytes" in done.stderr
    (headers,) = vars(strange)["seen"]
    assert "authorization" not in headers, "a pod without a key asks as anybody"


def test_the_job_has_the_digest_the_place_and_the_secrets_name(folder: Path, endpoint: str) -> None:
    spec = spec_of(
        *(folder, outside(endpoint), "--code-from", PLACE, "--code-secret", "bucket-key"),
        *("-e", "AWS_SESSION_TOKEN=mine"),
    )
    template = spec.template
    assert template is not None
    (fetch_container,) = template.init_containers or []
    assert endpoint in fetch_container.command
    assert any(word.startswith("sha256:") for word in fetch_container.command)
    sources = {each.name: each.value_from for each in fetch_container.env or []}
    assert [name for name, source in sources.items() if source] == list(KEYS)
    assert not any(value in str(spec) for value in KEYS.values() if value != "id")
    assert template.working_dir == "/code/folder"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("s3://", "want s3://BUCKET"),
        ("s3://Upper/a", "want s3://BUCKET"),
        ("s3://code/a/../b", "want s3://BUCKET"),
        ("s3://code/a?b", "want s3://BUCKET"),
    ],
)
def test_what_is_no_place_is_refused(folder: Path, text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        code_in_bucket(text, folder=folder, secret="", environment={})


def test_an_endpoint_with_a_user_in_it_is_refused(folder: Path) -> None:
    environment = {**os.environ, "AWS_ENDPOINT_URL": "https://me:pass@store.example.com"}
    with pytest.raises(BadInput, match="want https://HOST"):
        code_in_bucket(PLACE, folder=folder, secret="", environment=environment)


def test_a_store_that_refuses_is_a_sentence_without_keys(code: CodeInBucket, endpoint: str) -> None:
    nowhere = replace(code, bucket="no-such-bucket")
    with pytest.raises(NotAnswered, match="s3://no-such-bucket/") as refused:
        nowhere.store(outside(endpoint))
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in str(refused.value)


def test_a_secret_without_a_bucket_is_refused(folder: Path) -> None:
    with pytest.raises(BadInput, match=r"--code-secret.*--code-from.*s3"):
        spec_of(folder, dict(os.environ), "--code-secret", "a")
