"""Files that are no regular files, or of any size and depth, in every place that others write to.

A pipe without a writer would block its reader: these tests would not end.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drumline_contract.config import ConfigError
from drumline_contract.shapes.hugging_face.stored_head import head_differs
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.checkpoint.folder_files import write_durably
from drumline_trainer.checkpoint.folder_lock import locked
from drumline_trainer.checkpoint.lease import LeaseFile
from drumline_trainer.data import image_dataset
from tests.unit.trainer.checkpoint.test_folder import folder

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def stored(at: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [1], "data_offsets": [at, at + 4]}


def lease(place: Path) -> LeaseFile:
    return LeaseFile(path=place / "lease.json")


def lock(place: Path) -> None:
    with locked(place):
        pass


USES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "the lock": ("lock", lock),
    "a lease that is read": (
        "lease.json",
        lambda place: LeaseFile(path=place / "lease.json").read(),
    ),
    "a lease": ("lease.json", lambda place: LeaseFile(path=place / "lease.json").write(b"{}")),
    "a small file": ("a.json", lambda place: write_durably(place / "a.json", b"{}")),
}


@pytest.mark.parametrize("use", USES)
def test_a_pipe_in_a_checkpoint_folder_fails_at_once(tmp_path: Path, use: str) -> None:
    name, act = USES[use]
    os.mkfifo(tmp_path / name)
    with pytest.raises(OSError, match=r"not a regular file|No such device"):
        act(tmp_path)


@pytest.mark.parametrize("use", ["the lock", "a lease", "a small file"])
def test_a_link_in_a_checkpoint_folder_does_not_lead_a_write_elsewhere(
    tmp_path: Path, use: str
) -> None:
    name, act = USES[use]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    (tmp_path / name).symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic links"):
        act(tmp_path)
    assert elsewhere.read_text() == "kept"


@pytest.mark.parametrize("content", ["[" * 60_000, '{"a": "' + "x" * 70_000 + '"}', None])
def test_an_owner_record_that_cannot_be_read_is_corrupt(
    tmp_path: Path, content: str | None
) -> None:
    record = tmp_path / "membership.json"
    if content is None:
        os.mkfifo(record)
    else:
        record.write_text(content)
    with pytest.raises(CorruptCheckpointError, match="damaged"):
        folder(tmp_path, 1, 1).claim()


def test_images_that_are_a_pipe_are_refused(tmp_path: Path) -> None:
    for name in (image_dataset.IMAGES_FILE, image_dataset.LABELS_FILE):
        os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match="not a regular file"):
        image_dataset.open_images(tmp_path, seed=1)


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_weights_that_are_a_pipe_hold_no_head(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert not head_differs(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        "[" * 10_000,
        json.dumps({HEAD: stored(2**70), EMBEDDING: stored(0)}),
    ],
    ids=["deep", "far away"],
)
def test_a_header_of_any_depth_and_offsets_holds_no_head(tmp_path: Path, header: str) -> None:
    raw = header.encode()
    (tmp_path / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw)
    assert not head_differs(tmp_path)
