"""The cluster on one screen: what it shows, in how much room, and in a real terminal."""

from __future__ import annotations

import curses
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_row

from drumline.overview.jobs import job_rows, lines, positions
from drumline.overview.nodes import node_rows
from drumline.overview.queues import queue_rows
from drumline.overview.rows import JobRow
from drumline.overview.workloads import workload_uses
from drumline_cli.errors import NotAnswered
from drumline_cli.program import main
from drumline_console.top.live import TopView, ask, obey, take
from drumline_console.top.screen import TopRows, lines_of, render
from tests.texts import missing
from tests.unit.overview.objects import (
    FORBIDDEN,
    NOW,
    a_cluster,
    a_job,
    a_node,
    a_pod,
    a_pool,
    a_queue,
    at,
    printed,
    running,
)

ROOT = Path(__file__).parents[4]
OBJECTS = [
    a_queue("research", gpus=32),
    a_pool(),
    *(a_node(f"node-{number}") for number in (1, 2)),
    a_job("llama", status=running(step=420, totalSteps=1000, loss="2.31", expectedEnd=at(5000))),
    a_job(
        "big",
        spec={"nodes": 4},
        status={
            "phase": "Pending",
            "reason": "QuotaExhausted",
            "queuedAt": at(-1500),
            "expectedStart": at(600),
            "expectedStartBy": at(5400),
        },
    ),
    a_pod("chat", gpus=2),
    a_job("ended", status={"phase": "Succeeded", "reason": "Finished", "finishedAt": at(-60)}),
    a_job("old", status={"phase": "Succeeded", "reason": "Finished", "finishedAt": at(-6000)}),
]


@pytest.fixture
def rows() -> TopRows:
    objects = a_cluster(*OBJECTS)
    return TopRows(
        as_of=NOW,
        jobs=job_rows(
            objects.jobs, now=NOW, places=positions(lines(objects.jobs, objects.priorities))
        ),
        nodes=node_rows(objects),
        queues=queue_rows(objects),
    )


def test_pools_queues_and_jobs_are_on_it(rows: TopRows) -> None:
    title, pool, queue, empty, heads, *jobs = render(rows, width=200)
    assert not missing(title, "GPUs", "2 nodes", "1 job", "32 GPUs")
    assert pool.startswith("gpus ")
    assert "█" in pool
    assert queue.startswith("queue research")
    assert queue.endswith("1 job in line")
    assert (empty, heads.split()[0]) == ("", "JOB")
    assert [line.split()[0] for line in jobs] == ["team/llama", "team/big", "team/ended"]
    assert "420/1000   2.31" in jobs[0]
    assert "ends in 1 h 23 min" in jobs[0]
    assert not missing(jobs[1], "#1", "10 min", "1 h", "30 min")
    assert "ended 60.0 s ago" in jobs[2]


def test_what_foreign_pods_hold_stands_beside_the_bar_of_their_queue(rows: TopRows) -> None:
    (queue,) = rows.queues
    quotas = (replace_row(queue.quotas[0], foreign_gpus=3),)
    screen = render(replace(rows, queues=[replace_row(queue, quotas=quotas)]), width=200)
    assert not missing(screen[2], "3", "1 job")


def test_a_quota_that_the_reader_may_not_read_is_not_0(rows: TopRows) -> None:
    seen = (each for each in OBJECTS if each["kind"] != "TrainingQueue")
    hidden = queue_rows(a_cluster(*seen, unread=FORBIDDEN))
    (bar,) = (line for line in render(replace(rows, queues=hidden), width=200) if "queue " in line)
    assert not missing(bar, "8 of ?", "not readable by you", "1 job in line")


@pytest.mark.parametrize(("width", "height"), [(40, 8), (80, 24), (10, 3), (1, 1)])
def test_it_fits_the_terminal(rows: TopRows, width: int, height: int) -> None:
    screen = render(many(rows), width=width, height=height)
    assert len(screen) <= height
    assert max(map(len, screen)) <= width


def test_the_end_of_the_list_is_reached_by_scrolling_and_not_passed(rows: TopRows) -> None:
    top = render(many(rows), width=120, height=12)
    assert "job-0 " in top[5]
    assert top[-1].endswith("94 more below")
    end = render(many(rows), width=120, height=12, first=10_000)
    assert "job-99" in end[-2]
    assert "more below" not in end[-1]


def test_a_note_takes_the_place_of_the_keys(rows: TopRows) -> None:
    assert render(rows, width=80, height=20, note="not answered")[-1] == "not answered"


def many(rows: TopRows) -> TopRows:
    jobs = [
        JobRow(namespace="t", name=f"job-{n}", queue="q", phase="Running", pods=1, gpus=8)
        for n in range(100)
    ]
    return replace(rows, jobs=jobs)


@pytest.fixture
def dump(tmp_path: Path) -> str:
    file = tmp_path / "cluster.json"
    file.write_text(printed(OBJECTS))
    os.utime(file, (NOW, NOW))
    return str(file)


def test_without_a_terminal_it_is_printed_once(
    dump: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "-f", dump, "-q", "research"]) == 0
    assert "team/llama" in capsys.readouterr().out


def test_an_interval_that_would_flood_an_api_server_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["top", "--interval", "0.1"])
    assert "must be 1 to 3600 seconds" in capsys.readouterr().err


def a_view(rows: TopRows) -> TopView:
    return TopView(rows=rows, read_at=0.0)


def test_scrolling_ends_with_the_jobs_that_are_shown(rows: TopRows) -> None:
    """Of four jobs the oldest is shown no more."""
    view = a_view(rows)
    for _ in range(10):
        obey(curses.KEY_DOWN, view)
    assert view.first == 3


def test_who_quits_does_not_wait_for_an_api_server(rows: TopRows) -> None:
    begun, answers = threading.Event(), threading.Event()

    def slow() -> TopRows:
        begun.set()
        answers.wait()
        return rows

    asked = ask(slow)
    assert begun.wait(60)
    reader = next(thread for thread in threading.enumerate() if "answer" in thread.name)
    assert reader.daemon
    answers.set()
    assert asked.result(60) is rows


def test_keys_scroll_pause_and_quit(rows: TopRows) -> None:
    view = a_view(many(rows))
    for key in (curses.KEY_DOWN, curses.KEY_NPAGE, curses.KEY_UP, ord("x"), -1):
        assert obey(key, view)
    assert view.first == 10
    assert obey(ord("p"), view)
    assert "paused" in view.note(5.0)
    assert not obey(ord("q"), view)


def test_what_was_read_stays_when_the_cluster_does_not_answer(rows: TopRows) -> None:
    view, failed, fine = a_view(rows), Future[TopRows](), Future[TopRows]()
    failed.set_exception(NotAnswered("the API server does not respond"))
    take(failed, view)
    assert view.rows is rows
    assert not missing(view.note(12.0), "API", "12.0 s")
    fine.set_result(many(rows))
    take(fine, view)
    assert (view.rows, view.error) == (fine.result(), "")


def test_in_a_terminal_it_is_drawn_until_q(dump: str) -> None:
    end, terminal = pty.openpty()
    ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 150, 0, 0))
    path = f"{ROOT / 'operator'}:{ROOT / 'trainer'}"
    program = subprocess.Popen(
        [sys.executable, "-m", "drumline", "top", "-f", dump],
        env={**os.environ, "TERM": "xterm", "PYTHONPATH": path},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    drawn = ""
    try:
        while "team/llama" not in drawn:  # the end of the program is an error
            drawn += os.read(end, 4096).decode(errors="replace")
        os.write(end, b"q")
        with suppress(OSError):  # its end
            while os.read(end, 4096):
                pass
        assert program.wait() == 0
    finally:
        program.kill()
        program.wait()
        os.close(end)


def test_what_is_no_job_has_its_line() -> None:
    """What foreign pods hold, and what waits beside jobs."""
    waits = {"workload": "team/jobs/train", "gpus": 4, "position": 1, "reason": "QuotaExhausted"}
    status = {"pendingWorkloads": 1, "waitingWorkloads": [{**waits, "message": ""}]}
    cluster = a_cluster(a_queue("research", status=status), a_pod("chat", gpus=2))
    rows = TopRows(
        as_of=NOW,
        jobs=(),
        nodes=(),
        queues=queue_rows(cluster),
        workloads=workload_uses(cluster),
    )
    lines = [line.split() for line in render(rows, width=200)]
    chat = [
        "team/pods/chat",
        "research",
        "Foreign",
        "2",
        "-",
        "-",
        "-",
        "-",
        "for",
        "5",
        "min",
        "-",
    ]
    assert chat in lines
    train = next(line for line in lines if line[:1] == ["team/jobs/train"])
    assert train[2:4] == ["Waiting", "4"]
    starts = "starts not known: no end of the jobs before it is known"
    assert " ".join(train[8:]) == f"#1, {starts} QuotaExhausted"
    assert lines_of(rows) == 2
