"""What a rank is told to train: by its pod's variable, and by the folder that its model is of."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest

from drumline_agent.processes.rank_main import preload, rank_request, run_child
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import Env, ExitCode
from drumline_contract.config import MODEL_PRESETS, TrainerConfig
from drumline_contract.shapes.hugging_face import to_theirs
from tests.texts import missing
from tests.unit.agent.processes import preempted_trainer, printing_trainer

_NO_BUCKET = b"<Error><Code>NoSuchBucket</Code></Error>"
LLAMA = MODEL_PRESETS["llama-8b"]
DESCRIBED = to_theirs(LLAMA, dtype="bfloat16")


class Refusing(BaseHTTPRequestHandler):
    """A store without a bucket."""

    def do_GET(self) -> None:
        self.send_response(HTTPStatus.NOT_FOUND)
        self.send_header("Content-Length", str(len(_NO_BUCKET)))
        self.end_headers()
        self.wfile.write(_NO_BUCKET)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def refusing_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "key")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()
        thread.join()


FIRST = Placement(rank=0, world_size=1)


Outcome = Callable[..., tuple[int, str, str]]


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Exit code, output and messages of a rank with this configuration."""

    def forked(
        placement: Placement = FIRST, *, module: ModuleType = printing_trainer, **config: Any
    ) -> tuple[int, str, str]:
        monkeypatch.setenv(Env.CONFIG, json.dumps(config))
        (output, to_output), (messages, to_messages), (orders, end) = (os.pipe() for _ in range(3))
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            run_child(
                module=module,
                order=rank_request(placement),
                descriptors=[to_output, to_messages, orders],
                parent_pid=parent,
            )
        for descriptor in (to_output, to_messages, orders):
            os.close(descriptor)
        with os.fdopen(output) as printed, os.fdopen(messages) as sent:
            text, said = printed.read(), sent.read()
        os.close(end)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text, said

    return forked


def described(folder: Path) -> str:
    """A folder that says that it holds llama-8b."""
    (folder / "config.json").write_text(json.dumps(DESCRIBED))
    return str(folder)


def test_a_rank_reads_the_model_of_the_folder_and_what_stands_above_it(
    outcome: Outcome, tmp_path: Path
) -> None:
    raw = {"model_from": described(tmp_path), "model": {"dropout": 0.25}, "seed": 3}
    code, text, _ = outcome(**raw)
    assert (code, json.loads(text)) == (ExitCode.OK, [LLAMA.layers, 0.25, 3])


def test_a_built_in_model_is_not_looked_up_in_the_folder(outcome: Outcome, tmp_path: Path) -> None:
    config = TrainerConfig(model=MODEL_PRESETS["tiny"], model_from=described(tmp_path))
    code, text, _ = outcome(**config.written())
    assert (code, json.loads(text)[0]) == (ExitCode.OK, MODEL_PRESETS["tiny"].layers)


def test_a_folder_that_cannot_be_read_is_a_configuration_error(
    outcome: Outcome, tmp_path: Path
) -> None:
    code, _, said = outcome(model_from=str(tmp_path / "absent"))
    assert code == ExitCode.CONFIG
    assert "absent/config.json: No such file" in said


def test_a_claim_that_does_not_answer_is_no_configuration_error(
    outcome: Outcome, tmp_path: Path
) -> None:
    (tmp_path / "config.json").symlink_to("/proc/self/mem")  # whose first byte is an I/O error
    code, _, said = outcome(model_from=str(tmp_path))
    assert code == ExitCode.STORAGE
    assert "config.json: Input/output error" in said


@pytest.mark.parametrize(
    "made",
    [
        Path.mkdir,
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
        lambda path: path.write_text(json.dumps({**DESCRIBED, "head_dim": {}})),
    ],
    ids=["a folder", "a pipe", "a device", "a list", "too deep", "a size that is none"],
)
def test_what_is_no_description_of_a_model_is_a_configuration_error(
    outcome: Outcome, tmp_path: Path, made: Callable[[Path], Any]
) -> None:
    made(tmp_path / "config.json")
    code, _, said = outcome(model_from=str(tmp_path))
    assert code == ExitCode.CONFIG
    assert "config.json" in said


@pytest.mark.parametrize("place", ["s3://Bucket", "s3://", "hf://model"])
def test_a_place_that_is_none_is_a_configuration_error(outcome: Outcome, place: str) -> None:
    code, _, said = outcome(model_from=place)
    assert code == ExitCode.CONFIG
    assert not missing(said, "model_from", "s3://BUCKET/PREFIX")


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        (FIRST, ExitCode.CONFIG),
        (replace(FIRST, generation=1, attempt=1), ExitCode.APPLICATION),
        (replace(FIRST, generation=2, previous_ranks=1), ExitCode.APPLICATION),
    ],
)
@pytest.mark.usefixtures("refusing_store")
def test_a_store_that_refuses_is_a_configuration_error_before_anything_was_trained(
    outcome: Outcome, placement: Placement, expected: ExitCode
) -> None:
    code, _, said = outcome(placement=placement, model_from="s3://nobody/model")
    assert "NoSuchBucket (404): make the bucket" in said
    assert code == expected


def test_a_store_that_is_not_there_is_waited_for(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "python"  # a reader that ran out of retries, or of memory
    for end in (f"exit {errno.EREMOTEIO}", "kill -9 $$"):
        program.write_text(f"#!/bin/sh\n{end}\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(program))
        assert outcome(model_from="s3://bucket/model")[0] == ExitCode.STORAGE


def test_what_ranks_import_is_known_without_the_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = {"model_from": str(tmp_path / "absent"), "model": {"classes": 3}, "seed": 5}
    monkeypatch.setenv(Env.CONFIG, json.dumps(raw))
    preload(printing_trainer)
    assert capsys.readouterr().out == "preloads for seed 5\n"


def test_a_normal_preemption_prints_a_sentence_and_no_traceback(outcome: Outcome) -> None:
    code, text, said = outcome(module=preempted_trainer)
    assert (code, text) == (ExitCode.PREEMPTED, "saved step 29 on request\n")
    assert "PreemptedError" in said
