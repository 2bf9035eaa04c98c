"""Parts of tensors of a file in a bucket, and what of it is fetched."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save

from drumline_contract.buckets.failures import StoreError
from drumline_contract.buckets.objects import ObjectBucket
from drumline_contract.buckets.path import AnyPath, any_path
from drumline_contract.regular_files import NotRegularError
from drumline_trainer.tensor_files import ranges
from drumline_trainer.tensor_files.layout import LENGTH_BYTES, MAX_HEADER_BYTES
from drumline_trainer.tensor_files.ranges import OpenTensorFile, open_tensor_file, read_header
from tests.store_proxy import Fate, Proxy

TENSORS = {
    "matrix": torch.arange(60, dtype=torch.float32).reshape(12, 5),
    "stack": torch.arange(120, dtype=torch.bfloat16).reshape(4, 6, 5),
    "bytes": torch.arange(200, dtype=torch.uint8).reshape(2, 5, 4, 5),
    "numbers": (torch.arange(16) / 4).to(torch.float8_e4m3fn).reshape(4, 4),
    "row": torch.arange(9, dtype=torch.float16),
    "scalar": torch.tensor(3.0),
    "empty": torch.zeros((0, 4)),
}
PARTS: list[tuple[str, tuple[slice, ...]]] = [
    ("matrix", (slice(3, 7),)),
    ("matrix", (slice(3, 7), slice(1, 3))),
    ("matrix", (slice(None), slice(4, 5))),
    ("matrix", (slice(11, 40), slice(None))),
    ("matrix", (slice(5, 5), slice(None))),
    ("stack", (slice(1, 3), slice(2, 4), slice(None))),
    ("stack", (slice(0, 4), slice(None), slice(2, 4))),
    ("stack", (slice(2, 3),)),
    ("bytes", (slice(1, 2), slice(1, 4))),
    ("bytes", (slice(None), slice(1, 2), slice(0, 3), slice(2, 3))),
    ("numbers", (slice(1, 3), slice(2, 4))),
    ("row", (slice(2, 8),)),
    ("scalar", ()),
    ("empty", (slice(None), slice(1, 2))),
]


@pytest.fixture
def path(url: str) -> AnyPath:
    path = any_path(f"{url}/model.safetensors")
    assert not isinstance(path, Path)
    path.write(save(TENSORS, metadata={"format": "pt"}))
    return path


@pytest.fixture(params=["as it is", "in short ranges", "columns alone"])
def file(
    path: AnyPath, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenTensorFile]:
    if request.param == "in short ranges":
        monkeypatch.setattr(ranges, "_RANGE_BYTES", 32)
        monkeypatch.setattr(ranges, "_FIRST_BYTES", 11)
    if request.param == "columns alone":
        monkeypatch.setattr(ranges, "_LONG_BYTES", 1)
    with open_tensor_file(path) as file:
        yield file


def test_parts_are_those_of_the_tensors(file: OpenTensorFile) -> None:
    assert sorted(file.keys()) == sorted(TENSORS)
    for name, part in PARTS:
        stored, whole = file.get_slice(name), TENSORS[name]
        assert stored.get_shape() == list(whole.shape)
        read, expected = stored[part], whole[part]
        assert (read.dtype, read.shape) == (expected.dtype, expected.shape), name
        assert torch.equal(read.float(), expected.float()), (name, part)
        assert torch.equal(file.get_tensor(name).float(), whole.float())
    with pytest.raises(SafetensorError, match="other is missing"):
        file.get_slice("other")


def test_of_rows_their_bytes_are_fetched_once(path: AnyPath, proxy: Proxy) -> None:
    with open_tensor_file(path) as file:
        proxy.seen.clear()
        proxy.sent_bytes = 0
        rows = file.get_slice("matrix")[3:7, :]
    assert proxy.sent_bytes == rows.numel() * 4
    asked = [request.range for request in proxy.seen if request.range]
    start = read_header(path)["matrix"].start + 3 * 5 * 4
    assert asked == [f"bytes={start}-{start + 4 * 5 * 4 - 1}"]


def test_a_store_that_is_lost_is_no_fault_of_the_file(
    url: str, path: AnyPath, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert path
    monkeypatch.setitem(ObjectBucket.__init__.__kwdefaults__, "retries", 0)
    with open_tensor_file(any_path(f"{url}/model.safetensors")) as file:
        proxy.fate = lambda _: Fate.LOST
        with pytest.raises(StoreError, match=r"cannot read s3://.*/model\.safetensors") as lost:
            file.get_tensor("matrix")
    assert lost.value.may_come_back
    proxy.fate = lambda _: Fate.DONE
    with pytest.raises(FileNotFoundError):
        read_header(any_path(f"{url}/other.safetensors"))


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b'{"a": 1}',
        b"[" * 2000,
        json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}}).encode(),
        json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}).encode(),
        json.dumps({"a": {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}}).encode(),
        json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [96, 104]}}).encode(),
        json.dumps({"a": {"dtype": "object", "shape": [1], "data_offsets": [0, 8]}}).encode(),
    ],
    ids=lambda header: str(header[:48]),
)
def test_a_header_that_cannot_be_is_refused(header: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(100))
    with pytest.raises(SafetensorError):
        read_header(file)


@pytest.mark.parametrize("body", [b"", b"123", (1 << 40).to_bytes(8, "little") + bytes(9)])
def test_what_is_no_file_of_tensors_is_refused_before_it_is_read(
    body: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(body)
    with pytest.raises(SafetensorError, match="a header of"):
        read_header(file)


@pytest.mark.parametrize("read", [open_tensor_file, read_header])
def test_a_pipe_and_a_header_of_gigabytes_are_refused_at_once(
    read: Callable[[Path], object], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotRegularError):
        read(tmp_path / "pipe")
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.write((MAX_HEADER_BYTES + 1).to_bytes(LENGTH_BYTES, "little"))
        file.truncate(MAX_HEADER_BYTES + 100)
    with pytest.raises(SafetensorError, match=f"header of {MAX_HEADER_BYTES + 1} bytes"):
        read(large)
