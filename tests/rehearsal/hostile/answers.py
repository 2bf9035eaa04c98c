"""What hostile agents answer when they are asked for their status."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from hostile.agents import Call, Pod

ESCAPES = "\x1b[2J\x1b]0;owned\x07\u202egnp.exe\u2066 \u2028 \x00 \ud800"
"""Clears a terminal, names its window, turns the direction of reading, breaks a line."""
_NAN, _INFINITY = float("nan"), float("inf")
PROGRESS: tuple[Any, ...] = (
    {"step": 90, "total_steps": 100, "loss": 1.0},
    {"step": 5, "total_steps": 1, "loss": 2.0},
    {"step": -1},
    {"step": 1 << 53, "total_steps": 1 << 53, "tokens_per_second": 1e15},
    {"step": 1 << 63},
    {"step": 10**400},
    {"step": 3, "loss": _NAN, "tokens_per_second": _NAN},
    {"step": 4, "loss": 1e308, "tokens_per_second": -1e308},
    {"step": 6, "loss": -1e15, "tokens_per_second": -1e15},
    {"step": 7, "loss": _INFINITY, "tokens_per_second": -_INFINITY},
    {"step": 8, "checkpoint_step": 1 << 53, "checkpoint_digest": ESCAPES * 20},
    {"step": 9, "checkpoint_step": 8, "checkpoint_digest": "0" * 5000},
    {"step": "10"},
    {"step": True},
    {"step": 11, "loss": [[]]},
    [],
    None,
)
BODIES = (
    b"",
    b"null",
    b"\xff\xfe\x00",
    b"[" * 60_000,
    b'{"a":' * 10_000,
    b'{"version":' + b"9" * 60_000 + b"}",
    b"<html>" + b"x" * 60_000,
)
TIMES = (0.0, -1e15, 1e15, 253_402_300_800.0, 1e12, _NAN, 1.7e9)


def stay_silent(_: Pod, call: Call) -> None:
    """Accept, and never answer."""
    call.connection.settimeout(None)
    threading.Event().wait()


def say_garbage(pod: Pod, call: Call) -> None:
    """Bodies that are no status, and at times no HTTP either."""
    if pod.asked % 4 == 0:
        call.connection.sendall(os.urandom(4096))
    else:
        call.answer(BODIES[pod.asked % len(BODIES)])


def never_end_headers(_: Pod, call: Call) -> None:
    """One header after another, fast at first and then slowly."""
    call.connection.sendall(b"HTTP/1.1 200 OK\r\n")
    number = 0
    while True:
        call.connection.sendall(b"X-%d: %s\r\n" % (number, b"y" * 1000))
        number += 1
        time.sleep(0.001 if number < 200 else 0.2)


def drip(_: Pod, call: Call) -> None:
    """A byte of a stated length every tenth of a second."""
    call.connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
    while True:
        call.connection.sendall(b"x")
        time.sleep(0.1)


def send_chunks(_: Pod, call: Call) -> None:
    """Chunks of one byte, without a stated length."""
    call.connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        call.connection.sendall(b"1\r\nx\r\n")
        time.sleep(0.1)


def send_a_gigabyte(_: Pod, call: Call) -> None:
    """As much as the other side takes."""
    call.connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
    for _block in range(1024):
        call.connection.sendall(b"\0" * (1 << 20))


def redirect(pod: Pod, call: Call) -> None:
    """To the operator's own metrics, and to the metadata service of a cloud."""
    places = (b"http://127.0.0.1:8080/metrics", b"http://169.254.169.254/latest/meta-data/")
    place = places[pod.asked % len(places)]
    head = b"HTTP/1.1 307 Moved\r\nContent-Length: 0\r\nLocation: %s\r\n\r\n" % place
    call.connection.sendall(head)


def lie_about_progress(pod: Pod, call: Call) -> None:
    """Back, beyond every bound, no numbers."""
    call.answer(pod.status(progress=PROGRESS[pod.asked % len(PROGRESS)]))


def make_up_news(pod: Pod, call: Call) -> None:
    """Each answer has another generation and names members silent, as fast as it is asked."""
    silent = [{"index": index, "seconds": 1e12} for index in range(256)]
    call.answer(pod.status(generation=pod.asked, attempt=pod.asked, silent=silent))


def make_up_incidents(pod: Pod, call: Call) -> None:
    """Incidents of all times, with words that steer a terminal."""
    count = len(TIMES)
    incidents = [
        {
            "generation": pod.generation,
            "attempt": pod.asked * 32 + number,
            "fault_class": ("Application", "Infrastructure", "Preemption")[number % 3],
            "cause": ESCAPES * 8,
            "culprit_index": 1 << 53,
            "culprit_rank": 1 << 53,
            "fault_at": TIMES[(pod.asked + number) % count],
            "detected_at": TIMES[(pod.asked + 2 * number) % count],
            "first_step_at": TIMES[(pod.asked + 3 * number) % count],
            "failed_step": 0,
            "restored_step": 1 << 53,
        }
        # a status of few incidents whose times can all be read, or one that is refused as a whole
        for number in range(1 + pod.asked % 4)
    ]
    call.answer(pod.status(incidents=incidents, attempt=pod.asked * 32, waiting_for=ESCAPES))
