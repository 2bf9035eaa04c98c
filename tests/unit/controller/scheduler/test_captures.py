"""A cycle is written when it was asked for, once, whole, and for its owner's eyes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drumline import __version__
from drumline.controller.scheduler.captures import MAX_FAULT_FILES, CycleCaptures, fault_file
from drumline_scheduler.capture import decode
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Decisions, GangFault
from drumline_scheduler.model import Policy, Snapshot

NOTHING = Snapshot(nodes=(), pools=(), queues=())


def a_cycle(now: float, *set_aside: GangFault) -> CycleInput:
    return CycleInput(snapshot=NOTHING, pending=(), policy=Policy(), now=now, set_aside=set_aside)


def decided(now: float) -> Decisions:
    return Decisions(retry_at=now + 1)


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_only_the_next_cycle_is_written(tmp_path: Path) -> None:
    file, woken = tmp_path / "capture.json", []
    captures = CycleCaptures(file=file, wake=lambda: woken.append(True))
    await captures.take(a_cycle(1.0), decisions=decided(1.0))
    assert files_in(tmp_path) == []
    captures.request()
    assert woken == [True]
    for now in (2.0, 3.0):
        await captures.take(a_cycle(now), decisions=decided(now))
    written = decode(file.read_bytes())
    assert (written.cycle, written.decisions) == (a_cycle(2.0), decided(2.0))
    assert written.program == __version__
    assert files_in(tmp_path) == [file]
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_newer_capture_takes_the_place_of_the_older(tmp_path: Path) -> None:
    file = tmp_path / "capture.json"
    file.write_text("older")
    file.with_suffix(".part").write_text("left by a process that died")
    captures = CycleCaptures(file=file, wake=lambda: None)
    captures.request()
    await captures.take(a_cycle(4.0), decisions=decided(4.0))
    assert decode(file.read_bytes()).now == 4.0
    assert files_in(tmp_path) == [file]


async def test_the_older_is_gone_before_the_newer_is_written(tmp_path: Path) -> None:
    file = tmp_path / "capture.json"
    file.write_text("older")
    file.with_suffix(".part").mkdir()  # nothing can be written
    captures = CycleCaptures(file=file, wake=lambda: None)
    captures.request()
    await captures.take(a_cycle(5.0), decisions=decided(5.0))
    assert files_in(tmp_path) == [file.with_suffix(".part")]


async def test_a_folder_that_is_gone_stops_no_cycle(tmp_path: Path) -> None:
    captures = CycleCaptures(file=tmp_path / "gone" / "capture.json", wake=lambda: None)
    captures.request()
    await captures.take(a_cycle(1.0), decisions=decided(1.0))
    assert files_in(tmp_path) == []


async def test_a_new_fault_is_captured_without_a_request_and_few_files_are_kept(
    tmp_path: Path,
) -> None:
    file = tmp_path / "drumline-capture.json"
    captures = CycleCaptures(file=file, wake=lambda: None)
    faults = [GangFault(key="a/b", uid=str(i), stage="admit", error="KeyError") for i in range(5)]
    for i, fault in enumerate(faults):
        await captures.take(a_cycle(float(i), fault), decisions=decided(i), fresh=[fault])
        os.utime(fault_file(file, fault), (i, i))
    await captures.take(a_cycle(9.0), decisions=decided(9.0), fresh=[])
    assert {each.name for each in files_in(tmp_path)} == {
        f"drumline-fault-{fault.seed}.json" for fault in faults[-MAX_FAULT_FILES:]
    }
    last = decode(fault_file(file, faults[-1]).read_bytes())
    assert (last.now, last.set_aside) == (4.0, (faults[-1],))
    assert fault_file(file, faults[-1]).stat().st_mode & 0o777 == 0o600


async def test_a_capture_on_request_leaves_those_of_faults(tmp_path: Path) -> None:
    file = tmp_path / "drumline-capture.json"
    captures = CycleCaptures(file=file, wake=lambda: None)
    fault = GangFault(key="a/b", uid="1", stage="admit", error="KeyError")
    captures.request()
    await captures.take(a_cycle(1.0), decisions=decided(1.0), fresh=[fault])
    captures.request()
    await captures.take(a_cycle(2.0), decisions=decided(2.0))
    assert decode(file.read_bytes()).now == 2.0
    assert decode(fault_file(file, fault).read_bytes()).now == 1.0


async def test_each_of_several_new_faults_has_a_file_and_a_full_disk_leaves_none_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "drumline-capture.json"
    captures = CycleCaptures(file=file, wake=lambda: None)
    faults = [GangFault(key="a/b", uid=str(i), stage="admit", error="KeyError") for i in range(2)]
    await captures.take(a_cycle(1.0), decisions=decided(1.0), fresh=faults)
    assert set(files_in(tmp_path)) == {fault_file(file, fault) for fault in faults}

    def full(_: object, __: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    monkeypatch.setattr(os, "fdopen", full)
    await captures.take(a_cycle(2.0), decisions=decided(2.0), fresh=faults)
    assert not [each for each in files_in(tmp_path) if each.suffix == ".part"]
