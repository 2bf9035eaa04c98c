"""The programs of the image: which is played, HOSTILE_PROGRAM or the job's own name says.

Agents (of jobs of the trainer) listen where the operator looks for them. The others are what a
template may run. What a program finds out it writes to `NAME.json` in its folder of the claim.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

from hostile import answers
from hostile.agents import AGENT_PORT, Behaviour, Pod, accepting, serve

STORE_PORTS = range(29500, 29504)
OPERATOR_PORT = 8080
FLOOD_SECONDS = 15.0
MAX_SOCKETS = 400
MAX_PROCESSES = 1000
MAX_DISK_MEBIBYTES = 64
TOKEN_FILE = Path("/var/run/drumline/token/token")
TERMINATION_LOG = Path("/dev/termination-log")

AGENTS: dict[str, Behaviour] = {
    "silent": answers.stay_silent,
    "garbage": accepting(answers.say_garbage),
    "headers": accepting(answers.never_end_headers),
    "drip": accepting(answers.drip),
    "chunks": accepting(answers.send_chunks),
    "gigabyte": accepting(answers.send_a_gigabyte),
    "redirect": accepting(answers.redirect),
    "progress": accepting(answers.lie_about_progress),
    "news": accepting(answers.make_up_news),
    "incidents": accepting(answers.make_up_incidents),
}


def main() -> NoReturn:
    """Play the program, and end with the process: no other code of the image runs."""
    name = os.environ.get("HOSTILE_PROGRAM") or os.environ["DRUMLINE_JOB"]
    try:
        if name in AGENTS:
            serve(Pod(), AGENTS[name])
        PROGRAMS[name]()
    finally:
        os._exit(1)


def _folder() -> Path:
    return Path(os.environ.get("DRUMLINE_CHECKPOINT_FOLDER") or "/out")


def _targets() -> list[str]:
    """Addresses of the neighbour's pods."""
    plan = json.loads((_folder() / "plan.json").read_text())
    return plan["neighbours"]


def _note(name: str, findings: Any) -> None:
    file = _folder() / f"{name}.json"
    staged = file.with_suffix(".new")
    staged.write_text(json.dumps(findings))
    staged.rename(file)


def _forever() -> NoReturn:
    while True:
        time.sleep(3600)


def _request(address: str, method: str, path: str, body: bytes, signature: str) -> int | str:
    """The status of the answer, or why there is none."""
    connection = http.client.HTTPConnection(address, AGENT_PORT, timeout=5)
    try:
        connection.request(method, path, body, {"X-Drumline-Signature": signature})
        return connection.getresponse().status
    except OSError as error:
        return str(error)
    finally:
        connection.close()


def _signed(*parts: bytes) -> str:
    """Signed with the token of this program's own job."""
    mac = hmac.new(TOKEN_FILE.read_bytes(), digestmod=hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8, "big") + part)
    return mac.hexdigest()


def replay() -> NoReturn:
    """Send the neighbour's agents our own record, one for their job, notices, orders and reads."""
    pod = Pod()
    behave = accepting(lambda pod, call: call.answer(pod.status()))
    threading.Thread(target=serve, args=(pod, behave), daemon=True).start()
    pod.has_record.wait()
    leave = {"job_uid": "", "id": "x", "deadline": time.time() + 60, "leave": True}
    notice = json.dumps({**leave, "withdraw": False}).encode()
    newer = json.dumps({**json.loads(pod.record), "generation": 1 << 40}).encode()
    findings: dict[str, int | str] = {}
    for number, address in enumerate(_targets()):
        for title, method, path, body, signature in (
            ("our record", "PUT", "/v1/record", pod.record, pod.signature),
            ("a newer record", "PUT", "/v1/record", newer, _signed(b"record", newer)),
            ("a notice", "PUT", "/v1/notice", notice, _signed(b"notice", notice)),
            ("an order", "PUT", "/v1/rounds", b"{}", _signed(b"round", b"{}")),
            ("a beat", "PUT", "/v1/beat", b"{}", _signed(b"beat", b"{}")),
            ("its status", "GET", "/v1/status", b"", _signed(b"get", b"/v1/status")),
            ("its record", "GET", "/v1/record", b"", _signed(b"get", b"/v1/record")),
            ("a snapshot", "GET", "/v1/snapshots/0/1", b"", _signed(b"get", b"/v1/snapshots/0/1")),
            ("a path", "GET", "/v1/snapshots/../../../etc/passwd", b"", ""),
        ):
            findings[f"{title} at {number}"] = _request(address, method, path, body, signature)
    _note("replay", findings)
    _forever()


def spy() -> NoReturn:
    """Connect to the rendezvous store of the neighbour's job."""

    def look(address: str, port: int) -> str:
        try:
            with socket.create_connection((address, port), timeout=5) as connection:
                connection.sendall(b"\x0a" + bytes(8))
                return f"heard {connection.recv(64)!r}"
        except OSError as error:
            return f"refused: {error}"

    places = [(address, port) for address in _targets() for port in STORE_PORTS]
    with ThreadPoolExecutor(len(places)) as pool:
        findings = list(pool.map(lambda place: look(*place), places))
    _note(
        "spy",
        {f"{place[0]}:{place[1]}": said for place, said in zip(places, findings, strict=True)},
    )
    _forever()


def flood() -> NoReturn:
    """Keep as many connections as possible to the neighbour's agents and to the operator."""
    plan = json.loads((_folder() / "plan.json").read_text())
    places = [(address, AGENT_PORT) for address in plan["neighbours"]]
    places += [(address, OPERATOR_PORT) for address in plan["operators"]]
    until = time.monotonic() + FLOOD_SECONDS
    with ThreadPoolExecutor(len(places)) as pool:
        findings = list(pool.map(lambda place: _flood(*place, until=until), places))
    named = zip(places, findings, strict=True)
    _note("flood", {f"{place[0]}:{place[1]}": count for place, count in named})
    _forever()


def _flood(address: str, port: int, *, until: float) -> int:
    held: list[socket.socket] = []
    made = 0
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            held.append(socket.create_connection((address, port), timeout=2))
            made += 1
            held[-1].sendall(b"GET /readyz HTTP/1.1\r\nX-Slow: ")
        if len(held) > MAX_SOCKETS:
            held.pop(0).close()
        time.sleep(0.003)
    for connection in held:
        connection.close()
    return made


def fork() -> NoReturn:
    """Processes that ignore SIGTERM, as many as the kernel gives this pod."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    count, refusal = 0, ""
    try:
        while count < MAX_PROCESSES:
            if os.fork() == 0:
                signal.pause()
                os._exit(0)
            count += 1
    except OSError as error:
        refusal = str(error)
    _note("fork", {"processes": count, "refusal": refusal})
    _forever()


def fill() -> NoReturn:
    """More onto the scratch disk than the job asked for."""
    block = os.urandom(1 << 20)
    with (Path.home() / "filled").open("wb") as file:
        for _ in range(MAX_DISK_MEBIBYTES):
            file.write(block)
    _forever()


def desert() -> NoReturn:
    """The second member succeeds at once; the first goes on."""
    if os.environ["DRUMLINE_INDEX"] == "1":
        os._exit(0)
    serve(Pod(), accepting(lambda pod, call: call.answer(pod.status())))
    _forever()


def report() -> NoReturn:
    """Train for a moment, then fail with a final report full of escapes."""
    pod = Pod()
    behave = accepting(lambda pod, call: call.answer(pod.status(waiting_for=answers.ESCAPES)))
    threading.Thread(target=serve, args=(pod, behave), daemon=True).start()
    pod.has_record.wait()
    time.sleep(3)
    last = {
        "progress": {"step": 1, "total_steps": 2},
        "error": answers.ESCAPES * 10,
        "failed_rank": 1 << 53,
    }
    TERMINATION_LOG.write_text(json.dumps({**last, "fault_class": "Application"}))
    os._exit(1)


def curse() -> NoReturn:
    """Fail with last words that are nothing but escapes."""
    words = (answers.ESCAPES * 20).encode(errors="replace")
    TERMINATION_LOG.write_bytes(words)
    os.write(1, words)
    os._exit(1)


PROGRAMS: dict[str, Callable[[], NoReturn]] = {
    "replay": replay,
    "spy": spy,
    "flood": flood,
    "fork": fork,
    "fill": fill,
    "desert": desert,
    "report": report,
    "curse": curse,
}
