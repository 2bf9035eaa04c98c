"""What is said of stores that refuse, and what is read and left of one that does not."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from drumline_contract.buckets.failures import BucketError, bucket_error
from drumline_contract.buckets.objects import ObjectBucket
from drumline_trainer.checkpoint.bucket.index import MAX_STEPS, Index
from drumline_trainer.checkpoint.commit import StorageFailed
from drumline_trainer.checkpoint.errors import (
    CheckpointError,
    CorruptCheckpointError,
    StorageError,
    is_storage_fault,
)
from drumline_trainer.checkpoint.manifest import FileRecord, Manifest
from drumline_trainer.checkpoint.ownership import Owner
from tests.object_store import BUCKET, ObjectStore
from tests.store_proxy import Fate, Proxy
from tests.texts import missing
from tests.unit.trainer.checkpoint.bucket.gang import RANKS, Gang, opened, restored

pytestmark = pytest.mark.usefixtures("alone")


def gang(url: str, *membership: int, claim: str = "0a") -> Gang:
    return Gang.claimed(lambda: opened(url, *membership, claim=claim))


def test_a_restore_fetches_every_byte_once(
    url: str, proxy: Proxy, store: ObjectStore, prefix: str
) -> None:
    gang(url).save(1)
    sizes = {
        name: file.stat().st_size
        for name, file in store.objects(prefix).items()
        if name.endswith(".safetensors")
    }
    assert len(sizes) == RANKS
    proxy.seen.clear()
    proxy.sent_bytes = 0
    restored(opened(url))
    ranges = [request for request in proxy.seen if request.range]
    assert sorted(request.key.removeprefix(f"{prefix}/") for request in ranges) == sorted(sizes)
    small = sum(
        file.stat().st_size
        for name, file in store.objects(prefix).items()
        if "manifest" in name or name == "index.json"
    )
    assert sum(sizes.values()) < proxy.sent_bytes <= sum(sizes.values()) + 2 * small


def test_a_canceled_save_leaves_no_part_of_an_upload(
    url: str, proxy: Proxy, store: ObjectStore, prefix: str
) -> None:
    class Canceled(Exception):  # noqa: N818 - of the test
        pass

    def cancel() -> None:
        raise Canceled

    files = gang(url).storages[0].begin(1)
    with pytest.raises(Canceled):
        files.write("rank-00000-of-00002.safetensors", {}, check=cancel)
    assert not [name for name in store.objects(prefix) if name != "index.json"]
    begun = [each for each in proxy.seen if each.method == "POST" and "uploads" in each.key]
    ended = [each for each in proxy.seen if each.method == "DELETE" and "uploadId" in each.key]
    assert len(begun) == len(ended)


def test_a_store_that_is_lost_is_no_damaged_checkpoint(url: str, proxy: Proxy) -> None:
    """Else an older step would be taken, and the newer one lost without a word."""
    saving = gang(url)
    saving.save(1)
    saving.save(2)
    proxy.fate = lambda request: Fate.LOST if request.range else Fate.DONE
    with pytest.raises(StorageError, match=r"cannot read s3://.*rank-0000"):
        restored(opened(url))
    proxy.fate = lambda _: Fate.DONE
    assert restored(opened(url)) == 2


def test_an_index_that_is_gone_is_not_taken_for_an_empty_prefix(
    url: str, store: ObjectStore, prefix: str
) -> None:
    saving = gang(url)
    saving.save(1)
    objects = store.objects(prefix)
    index = objects["index.json"].read_bytes()
    objects["index.json"].unlink()
    with pytest.raises(CorruptCheckpointError, match=r"index\.json"):
        opened(url, 2, claim="0b").claim()
    assert set(store.objects(prefix)) == set(objects) - {"index.json"}
    objects["index.json"].write_bytes(index[:-20])
    with pytest.raises(CorruptCheckpointError, match=r"index\.json is damaged"):
        opened(url, 2, claim="0b").claim()


def test_a_bucket_that_is_not_there_is_said_so(store: ObjectStore) -> None:
    assert store
    with pytest.raises(BucketError) as refused:
        opened("s3://no-such-bucket/run").claim()
    assert not missing(
        str(refused.value),
        "s3://no-such-bucket/run/index.json",
        "NoSuchBucket",
        "404",
        "AWS_REGION",
    )
    assert not is_storage_fault(refused.value)


def test_wrong_keys_are_said_and_never_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    with pytest.raises(BucketError, match=r"cannot read s3://.*\(403\): correct AWS_") as refused:
        opened(url).claim()
    assert "not-the-secret" not in str(refused.value)
    assert not is_storage_fault(refused.value)


def test_a_store_that_does_not_answer_may_come_back(url: str, proxy: Proxy) -> None:
    proxy.fate = lambda _: Fate.LOST
    with pytest.raises(BucketError, match="cannot read s3://") as refused:
        opened(url).claim()
    assert is_storage_fault(refused.value)


@pytest.mark.parametrize(
    ("code", "status", "advice", "by_storage"),
    [
        ("AccessDenied", 403, "let these credentials get, put, delete and list", False),
        ("RequestTimeTooSkewed", 403, "clock", True),
        ("ExpiredToken", 400, "renew them", False),
        ("SlowDown", 503, "SlowDown (503)", True),
        ("InvalidRequest", 400, "InvalidRequest (400)", False),
    ],
)
def test_what_a_store_answers_says_what_to_do(
    code: str, status: int, advice: str, *, by_storage: bool
) -> None:
    answer = (
        f"Generic S3 error: Error performing PUT https://s3/b/k?token=hidden in 1ms - Server"
        f" returned non-2xx status code: {status} X: <Error><Code>{code}</Code><Message>x</Message>"
        "<CanonicalRequest>x-amz-security-token:hidden</CanonicalRequest></Error>"
    )
    error = bucket_error(RuntimeError(answer), what="cannot write s3://b/k")
    assert advice in str(error)
    assert "hidden" not in str(error)
    assert is_storage_fault(error) == by_storage


def test_a_query_is_in_no_message() -> None:
    lost = "Error performing POST https://sts/?WebIdentityToken=hidden in 3s - timed out\nDebug"
    assert (
        str(bucket_error(RuntimeError(lost)))
        == "Error performing POST https://sts/ in 3s - timed out"
    )


@pytest.mark.parametrize("url", ["http://me:p@ss/word@minio/b/k", "http://me:p?ss@minio/b/k"])
def test_the_user_of_an_endpoint_is_in_no_message(url: str) -> None:
    lost = f"Error performing GET {url} in 3s - error sending request"
    assert str(bucket_error(RuntimeError(lost))) == (
        "Error performing GET http://... in 3s - error sending request"
    )


@pytest.mark.parametrize(
    "steps",
    [
        {"1": "other"},
        {"1": ""},
        {"1": "/"},
        {"1": "../step-00000001.0a.1"},
        {"1": "step-00000001.0a.1/"},
        {"1": "step-00000001.0a.1\n"},
        {"2": "step-00000001.0a.1"},
        {"-1": "step-00000001.0a.1"},
        {"1": ["step-00000001.0a.1"]},
        {str(step): f"step-{step:08d}.0a.1" for step in range(MAX_STEPS + 1)},
    ],
    ids=lambda steps: str(steps)[:40],
)
def test_a_place_that_no_save_is_called_is_never_deleted_nor_read(steps: object) -> None:
    owner = Owner(name="job", membership=(1, 0))
    index = json.loads(Index(owner=owner).encode(change="0a"))
    assert Index.parse(json.dumps(index).encode(), where="s3://b") == Index(owner=owner)
    with pytest.raises(CorruptCheckpointError, match=r"^s3://b/index\.json is damaged"):
        Index.parse(json.dumps({**index, "steps": steps}).encode(), where="s3://b")


def test_an_index_is_never_made_that_no_parse_takes() -> None:
    places = {step: f"step-{step:08d}.0a.1" for step in range(MAX_STEPS)}
    full = Index(owner=Owner(name="job", membership=(1, 0)), places=places)
    assert Index.parse(full.encode(change="0a"), where="s3://b") == full
    assert full.with_step(3, "step-00000003.0b.1").places[3] == "step-00000003.0b.1"
    with pytest.raises(CheckpointError, match="keep fewer"):
        full.with_step(MAX_STEPS, "step-00010000.0a.1")


def test_a_name_that_the_library_refuses_is_an_error_of_the_bucket(url: str) -> None:
    bucket = ObjectBucket(url)
    for ask in (
        lambda: bucket.get("../x", limit=9),
        lambda: bucket.size("../x"),
        lambda: bucket.put("../x", b""),
    ):
        with pytest.raises(BucketError, match="s3://") as refused:
            ask()
        assert not is_storage_fault(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3://UPPER/x",
        f"s3://{BUCKET}/",
        f"s3://{BUCKET}/a//b",
        "https://b/x",
        "s3://b/a b",
        f"s3://{BUCKET}/team-a/../team-b",
        f"s3://{BUCKET}/./a",
        f"s3://{BUCKET}/a\n",
    ],
)
def test_a_place_is_a_bucket_and_a_prefix(url: str) -> None:
    with pytest.raises((ValueError, CheckpointError), match=r"write a folder, s3://BUCKET/PREFIX"):
        ObjectBucket(url)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_ACCESS_KEY_ID", "hidden\n"),
        ("AWS_SECRET_ACCESS_KEY", "hidden\r\n"),
        ("AWS_SESSION_TOKEN", "hidden\n"),
        ("AWS_ENDPOINT_URL", "hidden"),
        ("AWS_ENDPOINT_URL_S3", "user:hidden@host"),
        ("AWS_ENDPOINT_URL", "http://hidden :80"),
        ("AWS_ENDPOINT_URL", "http://hidden:99999"),
    ],
)
def test_variables_that_would_end_the_library_are_named_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(BucketError, match=f"cannot open s3://bucket: {name} ") as refused:
        ObjectBucket("s3://bucket", retries=0).size("x")
    assert "hidden" not in str(refused.value)
    assert not is_storage_fault(refused.value)
    ObjectBucket("gs://bucket")  # which reads none of them


def test_a_save_and_a_restore_make_so_many_requests(
    url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bill of a store counts them: none for each tensor, one for so many bytes."""
    saving = gang(url)
    proxy.seen.clear()
    saving.save(1)
    asked = Counter(request.method for request in proxy.seen)
    # of each of two files an upload's begin and end, and its parts, here one; two small ones; the
    # index, read and put
    assert asked == {"POST": 2 * RANKS, "PUT": RANKS + 2 + 1, "GET": 1}
    monkeypatch.setattr("drumline_trainer.checkpoint.bucket.files._RANGE_BYTES", 100)
    proxy.seen.clear()
    restored(opened(url))
    asked = Counter(request.method for request in proxy.seen)
    sizes = [file.size_bytes for file in saved_files(url)]
    ranges = sum(-(-size // 100) for size in sizes)
    # the steps, the place of one, its manifest and that one's digest
    assert asked == {"HEAD": RANKS, "GET": 4 + ranges}


def saved_files(url: str) -> list[FileRecord]:
    body = opened(url).committed(1).read_small("manifest.json", limit=1 << 20)
    return list(Manifest.parse(body).files.values())


def test_a_store_that_stays_too_busy_fails_the_save_and_says_so(url: str, proxy: Proxy) -> None:
    saving = gang(url)
    saving.save(1)
    proxy.fate = lambda request: Fate.BUSY if request.writes else Fate.DONE
    outcome = saving.try_to_save(2)
    assert isinstance(outcome, StorageFailed)
    assert "SlowDown (503)" in outcome.reason
    proxy.fate = lambda _: Fate.DONE
    assert restored(opened(url)) == 1


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("builder error\nDebug: No CA certificates were loaded", "the package ca-certificates"),
        ("a redirect: an incorrectly configured region", "set AWS_REGION to the bucket's own"),
        ("PUT http://169.254.169.254/latest/api/token", "no credentials: set AWS_ACCESS_KEY_ID"),
        ("GET http://metadata.google.internal/x", "set GOOGLE_SERVICE_ACCOUNT_KEY"),
    ],
)
def test_what_the_library_says_without_a_code_says_what_to_do(text: str, advice: str) -> None:
    assert advice in str(bucket_error(RuntimeError(text), what="cannot read s3://b/k"))
