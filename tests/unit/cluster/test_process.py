"""Processes are started, found and killed for real: that is all this module does."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.cluster.model import ClusterError
from tools.cluster.process import (
    Process,
    _open,
    exited,
    find,
    kill,
    log_path,
    marked_children,
    spawn,
    wait_until,
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    kill(tmp_path)


def roles(folder: Path) -> list[str]:
    return [process.role for process in find(folder)]


def test_a_process_and_the_children_it_leaves_are_found_and_killed(folder: Path) -> None:
    # the shell starts a child and ends: only the mark still tells whose it is
    parent = spawn(["/bin/sh", "-c", "sleep 600 & echo $!"], folder=folder, role="node-0/daemon")
    wait_until(lambda: exited(parent), what="parent gone", timeout_seconds=10, folder=folder)
    assert roles(folder) == ["node-0/daemon"]

    assert kill(folder) == 1

    assert roles(folder) == []


def test_only_the_roles_that_begin_so_are_killed(folder: Path) -> None:
    for role in ("node-1/kubelet", "node-1/containerd", "node-10/kubelet", "etcd"):
        spawn(["/bin/sleep", "600"], folder=folder, role=role)

    assert kill(folder, role_prefix="node-1/") == 2

    assert roles(folder) == ["etcd", "node-10/kubelet"]


def test_a_process_of_another_cluster_lives_on(folder: Path) -> None:
    other = folder.parent / f"{folder.name}-2"
    kept = spawn(["/bin/sleep", "600"], folder=other, role="etcd")
    try:
        kill(folder)
        assert [process.pid for process in find(other)] == [kept.pid]
    finally:
        kill(other)


def test_a_process_survives_the_interrupt_of_its_starters_terminal(folder: Path) -> None:
    process = spawn(["/bin/sleep", "600"], folder=folder, role="etcd")
    assert os.getsid(process.pid) == process.pid != os.getsid(0)


def test_what_it_prints_goes_to_its_own_log(folder: Path) -> None:
    process = spawn(["/bin/sh", "-c", "echo out; echo err >&2"], folder=folder, role="a/b")
    wait_until(lambda: exited(process), what="end", timeout_seconds=10, folder=folder)
    assert log_path(folder, "a/b").read_text() == "out\nerr\n"


def test_a_needed_process_that_dies_ends_the_wait_with_its_last_words(folder: Path) -> None:
    process = spawn(["/bin/sh", "-c", "echo no such flag; exit 2"], folder=folder, role="etcd")
    with pytest.raises(ClusterError, match=r"etcd ended early:(.|\n)*no such flag"):
        wait_until(lambda: False, what="ready", timeout_seconds=30, folder=folder, needs=[process])


def test_a_wait_that_is_over_says_for_what(folder: Path) -> None:
    with pytest.raises(ClusterError, match="nodes Ready: not within 0 s"):
        wait_until(lambda: False, what="nodes Ready", timeout_seconds=0.01, folder=folder)


def test_a_command_of_a_start_is_found_and_one_after_it_is_not(folder: Path) -> None:
    with contextlib.ExitStack() as handles:
        with marked_children(folder):
            handles.enter_context(subprocess.Popen(["/bin/sleep", "600"]))
        assert roles(folder) == ["up"]
        assert kill(folder) == 1
    subprocess.run(["/bin/sh", "-c", 'test -z "$DRUMLINE_CLUSTER_FOLDER"'], check=True)


def test_a_number_that_now_is_a_strangers_gives_no_handle(folder: Path) -> None:
    """Between the list and the signal a pid may pass to another process."""
    stranger = subprocess.Popen(["/bin/sleep", "600"])
    with contextlib.ExitStack() as handles:
        handles.callback(stranger.wait)
        handles.callback(stranger.kill)
        assert _open(Process(role="etcd", pid=stranger.pid), folder, handles) is None
