"""Against a server that speaks the S3 protocol, on loopback."""

from __future__ import annotations

import random
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from drumline_trainer.buckets.failures import bucket_error
from drumline_trainer.config import ConfigError, DataConfig
from drumline_trainer.contract import ExitCode
from drumline_trainer.data.cursor import micro_batch_ranges, rank_samples
from drumline_trainer.data.dataset import Batch, Dataset
from drumline_trainer.data.prefetch import Prefetcher
from drumline_trainer.data.shards import s3_store
from drumline_trainer.data.shards.s3_store import RETRIES, S3ShardStore, StoreUnreachableError
from drumline_trainer.data.shards.text import ShardMismatchError
from drumline_trainer.data.sources import open_dataset
from drumline_trainer.rank.exit_codes import exit_code_of
from tests.unit.trainer.data.shards.test_text import BLOCK_BYTES, write

SOURCE = "s3://corpus/small/v1"
ATTEMPTS = RETRIES + 1
PRIVATE = "which-no-message-may-hold"
SEQUENCE_LENGTH = 7


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of 270 tokens, two bytes each."""
    folder = tmp_path_factory.mktemp("shards")
    numbers = random.Random(0)
    write(folder, [[numbers.choices(range(500), k=30) for _ in range(9)] for _ in range(3)])
    return folder


@pytest.fixture(scope="module")
def store(shards: Path) -> Iterator[str]:
    """The address of a store that holds them."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    with closing(client_of(address)) as client:
        client.create_bucket(Bucket="corpus")
        for path in shards.iterdir():
            client.put_object(Bucket="corpus", Key=f"small/v1/{path.name}", Body=path.read_bytes())
    yield address
    server.stop()


def client_of(address: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key=PRIVATE,
    )


@dataclass
class Gate:
    """Stands before the store: writes down what is read, and answers in its place where asked."""

    behind: str
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    """Of each read of a shard: object, first byte, last byte (exclusive)."""
    answers: list[Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=list)
    """What the next requests get in place of the store's answer."""
    address: str = ""

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if wanted and ".bin" in request.path:
            first, last = int(wanted[1]), int(wanted[2])
            self.ranges.append((request.path.rpartition("/")[2], first, last + 1))
        if self.answers:
            self.answers.pop(0)(request)
            return
        self.forward(request)

    def forward(
        self, request: BaseHTTPRequestHandler, *, change: Callable[[bytes], bytes] = bytes
    ) -> None:
        """Give the store's answer, with another body if asked."""
        behind = HTTPConnection(self.behind.removeprefix("http://"))
        with closing(behind):
            behind.request("GET", request.path, headers=dict(request.headers))
            answer = behind.getresponse()
            request.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"connection", "server", "date"}:
                    request.send_header(name, value)
            request.end_headers()
            request.wfile.write(change(answer.read()))


@pytest.fixture
def gate(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The way to the store, and the environment of somebody who may read there."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PRIVATE)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    gate = Gate(behind=store)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            gate.handle(self)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        gate.address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", gate.address)
        yield gate
        server.shutdown()
        thread.join()


def opened(source: str = SOURCE, **changes: Any) -> Dataset:
    return open_dataset(
        DataConfig(source=source, sequence_length=SEQUENCE_LENGTH, **changes), seed=5
    )


def fetching() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("shards")]


@pytest.mark.usefixtures("gate")
def test_the_samples_are_those_of_the_same_shards_in_a_folder(shards: Path) -> None:
    local = opened(str(shards), packing="documents")
    with closing(opened(packing="documents")) as streamed:
        samples = range(local.windows)
        expected, results = local.batch(samples), streamed.batch(samples)
        assert (results.inputs == expected.inputs).all()
        assert (results.targets == expected.targets).all()
        assert streamed.target_count(samples) == local.target_count(samples)
        assert streamed.fingerprint() == local.fingerprint()
    assert not fetching()


def blocks_of(dataset: Dataset, samples: range) -> set[tuple[str, int, int]]:
    """The ranges that hold these samples."""
    results: set[tuple[str, int, int]] = set()
    for sample in samples:
        start = dataset.window_at(sample) * SEQUENCE_LENGTH
        for token in range(start, start + SEQUENCE_LENGTH + 1):
            shard, place = divmod(token, 270)
            first = place * 2 // BLOCK_BYTES * BLOCK_BYTES
            results.add((f"shard-{shard:05d}.bin", first, min(first + BLOCK_BYTES, 540)))
    return results


def test_one_rank_fetches_nothing_but_what_holds_its_samples(gate: Gate) -> None:
    for rank in range(3):
        gate.ranges.clear()
        with closing(opened()) as dataset:
            shape = {"batch": 12, "rank": rank, "world_size": 3}
            own = [*rank_samples(0, **shape), *rank_samples(12, **shape)]
            prepared(dataset, 0, **shape)
        wanted = set().union(*(blocks_of(dataset, range(n, n + 1)) for n in own))
        assert set(gate.ranges) <= wanted
        assert set(gate.ranges) >= blocks_of(dataset, rank_samples(0, **shape))
        assert len(gate.ranges) == len(set(gate.ranges))


@pytest.mark.usefixtures("gate")
def test_each_window_once_over_restarts_and_other_ranks(shards: Path) -> None:
    local = opened(str(shards))
    stream: list[list[int]] = []
    cursor = 0
    for world_size, batch, steps in ((2, 32, 2), (3, 51, 1)):
        for rank_steps in zip(
            *(
                _steps(cursor, batch=batch, rank=rank, world_size=world_size, steps=steps)
                for rank in range(world_size)
            ),
            strict=True,
        ):
            stream += [row for rows in rank_steps for row in rows]
        cursor += batch * steps
    assert cursor == local.windows == 115
    assert stream == local.batch(range(cursor)).inputs.tolist()


def _steps(cursor: int, *, batch: int, rank: int, world_size: int, steps: int) -> Any:
    """What one rank reads in its life, step by step: prefetched, as a run does."""
    dataset = opened()
    cursors = range(cursor, cursor + batch * steps, batch)
    with (
        Prefetcher(
            lambda at: prepared(dataset, at, batch=batch, rank=rank, world_size=world_size),
            cursors,
        ) as by_step,
        closing(dataset),
    ):
        return [[row for part in parts for row in part.inputs.tolist()] for parts in by_step]


def prepared(dataset: Dataset, cursor: int, **share: int) -> list[Batch]:
    """A rank's micro-batches of the step at `cursor`, while those of the next are fetched."""
    for start in (cursor, cursor + share["batch"]):
        dataset.prefetch(rank_samples(start, **share))
    return [dataset.batch(part) for part in micro_batch_ranges(cursor, **share, size=2)]


def test_the_cache_holds_what_it_may_and_no_more(gate: Gate) -> None:
    with closing(opened(cache_bytes=4 * BLOCK_BYTES)) as dataset:
        dataset.batch(range(12))
        whole = len(gate.ranges)
        dataset.batch(range(12))
        assert len(gate.ranges) > whole  # most had to be fetched again
    gate.ranges.clear()
    with closing(opened()) as dataset:
        dataset.batch(range(12))
        whole = len(gate.ranges)
        dataset.batch(range(12))
        assert len(gate.ranges) == whole


def unavailable(request: BaseHTTPRequestHandler) -> None:
    request.send_response(503)
    request.end_headers()


@pytest.mark.parametrize("broken_off", [False, True])
def test_what_fails_for_a_moment_is_tried_again(
    gate: Gate, shards: Path, *, broken_off: bool
) -> None:
    def half(request: BaseHTTPRequestHandler) -> None:
        gate.forward(request, change=lambda body: body[: BLOCK_BYTES // 2])
        request.close_connection = True

    local = opened(str(shards))
    with closing(opened()) as dataset:
        dataset.batch(range(1))
        gate.answers += [half if broken_off else unavailable] * 2
        expected = local.batch(range(1, 3)).inputs
        assert (dataset.batch(range(1, 3)).inputs == expected).all()
        assert not gate.answers


def test_what_keeps_failing_is_given_up(gate: Gate) -> None:
    with closing(opened()) as dataset:
        gate.answers += [unavailable] * 50
        with pytest.raises(
            StoreUnreachableError, match=r"the store answers .* \(503\)"
        ) as given_up:
            dataset.batch(range(1))
    assert len(gate.answers) == 50 - ATTEMPTS
    assert exit_code_of(given_up.value) == ExitCode.APPLICATION


def test_a_damaged_block_is_caught_whenever_it_is_fetched(gate: Gate) -> None:
    def damaged(request: BaseHTTPRequestHandler) -> None:
        gate.forward(request, change=lambda body: bytes(len(body)))

    with closing(opened(cache_bytes=1)) as dataset:
        intact = dataset.batch(range(12)).inputs
        gate.answers.append(damaged)
        with pytest.raises(ShardMismatchError, match=r"s3://corpus/small/v1/shard-0000\d\.bin"):
            dataset.batch(range(12))
        assert (dataset.batch(range(12)).inputs == intact).all()  # the damaged block is not kept


def test_a_shard_of_another_size_is_refused_at_the_start(gate: Gate, shards: Path) -> None:
    with closing(client_of(gate.behind)) as client:
        index = (shards / "shards.json").read_bytes()
        client.put_object(Bucket="corpus", Key="short/shards.json", Body=index)
        client.put_object(Bucket="corpus", Key="short/shard-00000.bin", Body=b"short")
    with pytest.raises(ShardMismatchError, match=r"shard-00000\.bin has 5 bytes and must have 540"):
        opened("s3://corpus/short")
    assert not fetching()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("s3://corpus/other", r"s3://corpus/other/shards\.json: no such object"),
        ("s3://absent", r"s3://absent/shards\.json: the store answers NoSuchBucket \(404\)"),
    ],
)
@pytest.mark.usefixtures("gate")
def test_what_is_not_there_is_a_configuration_error(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(source)


def test_no_message_holds_a_secret(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(request: BaseHTTPRequestHandler) -> None:
        request.send_response(403)
        request.end_headers()

    gate.answers.append(forbidden)
    with pytest.raises(ConfigError) as refused:
        opened()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreUnreachableError) as unreachable:
        opened()
    assert exit_code_of(unreachable.value) == ExitCode.APPLICATION
    for caught in (refused, unreachable):
        output = "".join(traceback.format_exception(caught.value))
        assert "s3://corpus/small/v1" in output
        assert PRIVATE not in output


@pytest.mark.usefixtures("gate")
def test_without_keys_or_the_package_the_remedy_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.delenv("AWS_ACCESS_KEY_ID")
        with pytest.raises(ConfigError, match="Missing AccessKeyId"):
            opened()

    def without_role() -> None:
        raise bucket_error(OSError("PUT http://169.254.169.254/latest/api/token"))

    with pytest.raises(ConfigError, match="no credentials: set AWS_ACCESS_KEY_ID"):
        s3_store._checked(without_role)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match=r"obstore; install drumline\[trainer-more\]"):
        opened()


@pytest.mark.usefixtures("gate")
def test_reads_after_the_end_fail_and_do_not_hang() -> None:
    dataset = opened()
    dataset.close()
    with pytest.raises(StoreUnreachableError, match="was closed"):
        dataset.batch(range(3))
    assert not fetching()


def test_a_prefix_may_have_characters_that_urls_escape(gate: Gate, shards: Path) -> None:
    with closing(client_of(gate.behind)) as client:
        for path in shards.iterdir():
            client.put_object(
                Bucket="corpus", Key=f"team's/a+b=c/{path.name}", Body=path.read_bytes()
            )
    with closing(opened("s3://corpus/team's/a+b=c/")) as dataset:
        expected = opened(str(shards)).batch(range(3)).inputs
        assert (dataset.batch(range(3)).inputs == expected).all()


@pytest.mark.usefixtures("gate")
def test_the_root_of_a_bucket_is_a_prefix_too() -> None:
    with closing(S3ShardStore("s3://corpus", cache_bytes=1)) as root:
        assert "small/v1/shards.json" in root.sizes()
        assert root.location == "s3://corpus"
