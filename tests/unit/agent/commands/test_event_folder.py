"""Event files as torch's SummaryWriter writes them, and what is none."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.tensorboard import SummaryWriter

from drumline_agent.commands import event_folder
from drumline_agent.commands.event_folder import EventFolder
from drumline_agent.commands.event_records import (
    EventFileError,
    ScalarEvent,
    record_length,
    scalar_event,
)
from drumline_agent.commands.progress_lines import ProgressLine


def writer(folder: Path) -> SummaryWriter:
    return SummaryWriter(str(folder))


def test_what_a_program_logs_is_shown_once(tmp_path: Path) -> None:
    events = EventFolder(tmp_path)
    assert events.read() is None
    with writer(tmp_path / "runs" / "now") as log:
        log.add_scalar("train/learning_rate", 0.5, 3)
        log.flush()
        assert events.read() == ProgressLine(step=3)
        log.add_scalar("train/loss", 1.5, 4)
        log.add_scalar("eval/loss", 9.0, 1)
        log.flush()
        assert events.read() == ProgressLine(step=4, loss=1.5)
        assert events.read() is None
        log.add_scalar("train/loss", 1.25, 5, new_style=True)
        log.flush()
        assert events.read() == ProgressLine(step=5, loss=1.25)


def test_the_tag_of_the_loss_can_be_another_one(tmp_path: Path) -> None:
    with writer(tmp_path) as log:
        log.add_scalar("loss", 1.0, 7)
        log.add_scalar("objective", 2.0, 6)
    assert EventFolder(tmp_path, loss_tag="objective").read() == ProgressLine(step=6, loss=2.0)


def test_a_restart_that_goes_back_is_shown_from_its_own_file(tmp_path: Path) -> None:
    events = EventFolder(tmp_path)
    with writer(tmp_path / "first") as log:
        log.add_scalar("loss", 1.0, 20)
    assert events.read() == ProgressLine(step=20, loss=1.0)
    with writer(tmp_path / "second") as log:
        log.add_scalar("loss", 2.0, 11)
        log.flush()
        (newest,) = (tmp_path / "second").iterdir()
        os.utime(newest, (2e9, 2e9))
        assert events.read() == ProgressLine(step=11, loss=2.0)


def test_files_of_training_and_evaluation_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_folder, "MAX_READ_RECORDS", 20)
    events = EventFolder(tmp_path)
    with writer(tmp_path / "train") as train, writer(tmp_path / "validation") as validation:
        for step in range(1, 51):
            train.add_scalar("loss", 1.0, step)
        train.flush()
        # The first record of a file is its version.
        assert [events.read() for _ in range(3)] == [
            ProgressLine(step=step, loss=1.0) for step in (19, 39, 50)
        ]
        validation.add_scalar("accuracy", 0.5, 2)
        validation.flush()
        touch(tmp_path / "validation", at=2e9)
        assert events.read() is None
        train.add_scalar("loss", 0.5, 51)
        train.flush()
        touch(tmp_path / "train", at=3e9)
        assert events.read() == ProgressLine(step=51, loss=0.5)


def touch(folder: Path, *, at: float) -> None:
    (path,) = folder.iterdir()
    os.utime(path, (at, at))


def test_large_records_are_passed_over_and_half_a_record_is_waited_for(tmp_path: Path) -> None:
    with writer(tmp_path) as log:
        log.add_text("config", "x" * 200_000)
        log.add_scalar("loss", 1.0, 1)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    events = EventFolder(tmp_path)
    path.write_bytes(whole[:-7])
    assert events.read() is None
    path.write_bytes(whole)
    assert events.read() == ProgressLine(step=1, loss=1.0)


def test_what_follows_damage_is_not_looked_at(tmp_path: Path) -> None:
    with writer(tmp_path) as log:
        log.add_scalar("loss", 1.0, 1)
        log.add_scalar("loss", 2.0, 2)
    (path,) = tmp_path.iterdir()
    damaged = bytearray(path.read_bytes())
    damaged[8] ^= 1  # of the first record's length
    path.write_bytes(damaged)
    events = EventFolder(tmp_path)
    assert events.read() is None
    with path.open("ab") as file:
        file.write(b"\0" * 100)
    assert events.read() is None


def test_a_long_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_folder, "MAX_READ_BYTES", 200)
    with writer(tmp_path) as log:
        for step in range(1, 101):
            log.add_scalar("loss", 1.0, step)
    events, steps = EventFolder(tmp_path), []
    while (line := events.read()) is not None:
        steps.append(line.step)
    assert steps == sorted(steps)
    assert steps[-1] == 100
    assert len(steps) > 10


def test_no_link_leads_out_of_the_folder(tmp_path: Path) -> None:
    with writer(tmp_path / "elsewhere") as log:
        log.add_scalar("loss", 1.0, 1)
    (path,) = (tmp_path / "elsewhere").iterdir()
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / path.name).symlink_to(path)
    (inside / "folder").symlink_to(tmp_path / "elsewhere")
    assert EventFolder(inside).read() is None


@given(st.binary(max_size=300))
def test_any_bytes_are_an_event_or_are_refused(data: bytes) -> None:
    try:
        event = scalar_event(data)
    except EventFileError:
        return
    assert event is None or isinstance(event, ScalarEvent)


def test_a_tensor_of_one_float_is_a_scalar() -> None:
    tensor = b"\x08\x01" + b"\x22\x04" + struct.pack("<f", 0.5)
    value = b"\x0a\x04loss" + b"\x42" + bytes([len(tensor)]) + tensor
    summary = b"\x0a" + bytes([len(value)]) + value
    event = b"\x10\x2a" + b"\x2a" + bytes([len(summary)]) + summary
    assert scalar_event(event) == ScalarEvent(step=42, values={"loss": 0.5})


def test_a_header_that_is_none_is_refused() -> None:
    with pytest.raises(EventFileError):
        record_length(b"\0" * 12)
