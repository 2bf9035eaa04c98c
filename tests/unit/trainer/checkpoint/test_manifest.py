from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from drumline_trainer.checkpoint.digests import Algorithm
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.manifest import (
    FileRecord,
    Manifest,
    Piece,
    TensorRecord,
    digest_line,
)
from drumline_trainer.sharding.boxes import Box


def manifest() -> Manifest:
    return Manifest(
        step=100,
        world_size=2,
        generation=3,
        attempt=1,
        files={
            "rank-0.safetensors": FileRecord(size_bytes=10, digest="a" * 32),
            "rank-1.safetensors": FileRecord(
                size_bytes=20, digest="b" * 64, algorithm=Algorithm.SHA256
            ),
        },
        tensors={
            "model.w": TensorRecord(
                dtype="F32",
                shape=(4, 2),
                pieces=(
                    Piece(file="rank-0.safetensors", box=Box(offsets=(0, 0), shape=(3, 2))),
                    Piece(file="rank-1.safetensors", box=Box(offsets=(3, 0), shape=(1, 2))),
                ),
            )
        },
        trainer={"cursor": 1600, "config": {"steps": 5}},
    )


def test_what_is_written_is_what_is_read() -> None:
    body = manifest().encode()
    assert Manifest.parse(body) == manifest()
    assert Manifest.parse(body).encode() == body


def test_the_digest_line_is_what_sha256sum_writes() -> None:
    assert digest_line(b"abc") == (
        b"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  manifest.json\n"
    )


def version_1() -> dict[str, Any]:
    """As it was written before tilings, every tensor with its own list."""
    raw = json.loads(manifest().encode())
    del raw["tilings"]
    shards = [
        {"file": p.file, "offsets": list(p.box.offsets), "shape": list(p.box.shape)}
        for p in manifest().tensors["model.w"].pieces
    ]
    tensors = {"model.w": {"dtype": "F32", "shape": [4, 2], "shards": shards}}
    return {**raw, "version": 1, "tensors": tensors}


def rename_file(raw: dict[str, Any], name: str) -> None:
    raw["files"][name] = raw["files"].pop("rank-0.safetensors")
    raw["tensors"]["model.w"]["shards"][0]["file"] = name


def shard(raw: dict[str, Any], number: int = 0) -> dict[str, Any]:
    return raw["tensors"]["model.w"]["shards"][number]


def digests(raw: dict[str, Any]) -> dict[str, Any]:
    return raw["files"]["rank-0.safetensors"]


BAD: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another format": lambda r: r.update(format="other"),
    "a later version": lambda r: r.update(version=3),
    "a step that is no number": lambda r: r.update(step="100"),
    "a negative step": lambda r: r.update(step=-1),
    "a step that is a truth": lambda r: r.update(step=True),
    "no files": lambda r: r.pop("files"),
    "files in a list": lambda r: r.update(files=[]),
    "no trainer state": lambda r: r.pop("trainer"),
    "a path upwards": lambda r: rename_file(r, "../rank-0.safetensors"),
    "an absolute path": lambda r: rename_file(r, "/etc/passwd"),
    "a folder in a name": lambda r: rename_file(r, "sub/rank-0.safetensors"),
    "two dots": lambda r: rename_file(r, ".."),
    "a hidden file": lambda r: rename_file(r, ".hidden"),
    "a zero byte": lambda r: rename_file(r, "rank\0"),
    "an empty name": lambda r: rename_file(r, ""),
    "a name without end": lambda r: rename_file(r, "x" * 129),
    "a newline after a name": lambda r: rename_file(r, "rank-0.safetensors\n"),
    "no digest": lambda r: r["files"]["rank-0.safetensors"].pop("xxh3_128"),
    "an empty digest": lambda r: r["files"]["rank-0.safetensors"].update(xxh3_128=""),
    "a short digest": lambda r: r["files"]["rank-0.safetensors"].update(xxh3_128="a" * 31),
    "a digest that is null": lambda r: r["files"]["rank-0.safetensors"].update(xxh3_128=None),
    "a digest of another kind's length": lambda r: digests(r).update(xxh3_128="a" * 64),
    "a digest of an unknown kind": lambda r: digests(r).update(crc32=digests(r).pop("xxh3_128")),
    "two digests": lambda r: digests(r).update(sha256="a" * 64),
    "no size": lambda r: r["files"]["rank-0.safetensors"].pop("bytes"),
    "a negative size": lambda r: r["files"]["rank-0.safetensors"].update(bytes=-1),
    "a file that is not an object": lambda r: r["files"].update({"rank-0.safetensors": 3}),
    "an unknown type": lambda r: r["tensors"]["model.w"].update(dtype="O"),
    "a type that is a list": lambda r: r["tensors"]["model.w"].update(dtype=["F32"]),
    "a shard of an unlisted file": lambda r: shard(r).update(file="rank-9.safetensors"),
    "a shard without a file": lambda r: shard(r).pop("file"),
    "a gap": lambda r: shard(r).update(shape=[2, 2]),
    "an overlap": lambda r: shard(r, 1).update(offsets=[2, 0], shape=[2, 2]),
    "a shard outside": lambda r: shard(r, 1).update(offsets=[9, 0]),
    "a shard short of a dimension": lambda r: shard(r).update(offsets=[0]),
    "nine dimensions": lambda r: r["tensors"]["model.w"].update(shape=[1] * 9),
    "a shape of text": lambda r: r["tensors"]["model.w"].update(shape=["4", "2"]),
    "no shards": lambda r: r["tensors"]["model.w"].update(shards=[]),
    "shards in an object": lambda r: r["tensors"]["model.w"].update(shards={}),
}


@pytest.mark.parametrize("damage", BAD.values(), ids=BAD.keys())
def test_refuses(damage: Callable[[dict[str, Any]], Any]) -> None:
    raw = version_1()
    damage(raw)
    with pytest.raises(CorruptCheckpointError):
        Manifest.parse(json.dumps(raw).encode())


def tiling(raw: dict[str, Any]) -> dict[str, Any]:
    return raw["tilings"][0]


BAD_TILINGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no tilings": lambda r: r.pop("tilings"),
    "tilings in an object": lambda r: r.update(tilings={}),
    "a tiling that is not an object": lambda r: r.update(tilings=[3]),
    "a tensor without a tiling": lambda r: r["tensors"]["model.w"].pop("tiling"),
    "a tiling that is not there": lambda r: r["tensors"]["model.w"].update(tiling=1),
    "a tiling that is a truth": lambda r: r["tensors"]["model.w"].update(tiling=True),
    "an unknown type": lambda r: r["tensors"]["model.w"].update(dtype="O"),
    "a file that is not there": lambda r: tiling(r).update(files=[0, 2]),
    "a file before the first": lambda r: tiling(r).update(files=[0, -1]),
    "a file fewer": lambda r: tiling(r).update(files=[0]),
    "a box more": lambda r: tiling(r)["shapes"].append([1, 2]),
    "a gap": lambda r: tiling(r).update(shapes=[[2, 2], [1, 2]]),
    "an overlap": lambda r: tiling(r).update(offsets=[[0, 0], [2, 0]], shapes=[[3, 2], [2, 2]]),
    "a box short of a dimension": lambda r: tiling(r).update(offsets=[[0], [3, 0]]),
    "another shape": lambda r: tiling(r).update(shape=[5, 2]),
}


@pytest.mark.parametrize("damage", BAD_TILINGS.values(), ids=BAD_TILINGS.keys())
def test_refuses_tilings(damage: Callable[[dict[str, Any]], Any]) -> None:
    raw = json.loads(manifest().encode())
    damage(raw)
    with pytest.raises(CorruptCheckpointError):
        Manifest.parse(json.dumps(raw).encode())


def test_manifests_of_the_version_before_are_read() -> None:
    assert Manifest.parse(json.dumps(version_1()).encode()) == manifest()


def test_tensors_that_are_cut_alike_share_a_tiling() -> None:
    [record] = manifest().tensors.values()
    again = replace(record, pieces=tuple(replace(piece) for piece in record.pieces))
    whole = replace(manifest(), tensors={"a": record, "b": record, "c": again})
    raw = json.loads(whole.encode())
    assert len(raw["tilings"]) == 1
    read = Manifest.parse(whole.encode())
    assert read == whole
    assert read.tensors["a"].pieces is read.tensors["c"].pieces


def test_what_could_not_be_read_does_not_verify() -> None:
    manifest().verify()
    [record] = manifest().tensors.values()
    halved = replace(record, pieces=record.pieces[:1])
    with pytest.raises(CorruptCheckpointError, match="do not cover"):
        replace(manifest(), tensors={"model.w": halved}).verify()
    with pytest.raises(CorruptCheckpointError, match="not listed"):
        replace(manifest(), files={}).verify()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b"null"])
def test_refuses_what_is_no_object(body: bytes) -> None:
    with pytest.raises(CorruptCheckpointError, match=r"manifest: (not JSON|must be a JSON object)"):
        Manifest.parse(body)
