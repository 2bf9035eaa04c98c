"""Which records an agent takes, from whom, and how they reach every agent."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from drumline_contract import SIGNATURE_HEADER, AgentPhase, GenerationRecord, Progress, sign
from tests.faults.agent.agents import JOB_UID, PORT, TOKEN, Agent, Band

pytestmark = pytest.mark.extended(keep=2)

HANG = {
    "DRUMLINE_RANK_MODULE": "tests.faults.agent.scripted_rank",
    "SCRIPT": json.dumps({str(rank): ["beat(3, 2.5)", "hang()"] for rank in range(4)}),
}
SIGNED_GET = sign(TOKEN, b"get", b"/v1/record")


async def answers(agent: Agent, record: GenerationRecord, *, token: bytes = TOKEN) -> object:
    status, body = await agent.push(record, token=token)
    return status, json.loads(body)["generation"]


async def test_only_a_newer_signed_record_of_this_job_that_names_this_pod_is_taken(
    band: Band,
) -> None:
    [agent] = await band.start_ready(1, variables={**HANG, "DRUMLINE_GENERATION": "4"})
    record = band.record(agents=1, ranks=1, generation=5)
    stranger = replace(record.members[0], pod_uid="another pod")

    assert await answers(agent, record, token=b"wrong") == (401, 3)
    assert await answers(agent, replace(record, job_uid="another job")) == (403, 3)
    assert await answers(agent, replace(record, generation=3)) == (409, 3)
    assert await answers(agent, replace(record, members=(stranger,))) == (409, 3)
    assert (await agent.status()).phase is AgentPhase.WAITING

    assert await answers(agent, record) == (200, 5)
    await agent.event("ranks_started")
    assert await answers(agent, record) == (200, 5), "a repeated push is harmless"
    stranger = replace(record.members[0], address="192.0.2.1")
    assert await answers(agent, replace(record, epoch=2)) == (200, 5), "a new leader of ours"
    assert await answers(agent, replace(record, members=(stranger,), epoch=2)) == (409, 5)
    assert await answers(agent, replace(record, generation=4)) == (409, 5)
    assert len(agent.events("ranks_started")) == 1


async def test_a_record_that_comes_before_ranks_can_start_is_served(band: Band) -> None:
    agent = await band.start(0, variables=HANG)
    await agent.event("agent_started")
    assert await answers(agent, band.record(agents=1, ranks=1)) == (200, 1)
    await agent.event("agent_ready")
    await agent.event("ranks_started")


async def test_a_signed_body_that_is_no_record_is_refused(band: Band) -> None:
    [agent] = await band.start_ready(1, variables=HANG)

    for body in (b"", b"{}", b"[]", b"\xff", b'{"members":[1]}', b"[" * 10_000):
        status, _, _ = await agent.call(
            "PUT", "/v1/record", body=body, signature=sign(TOKEN, b"record", body)
        )
        assert status == 400, body


async def test_reads_need_a_signature_and_return_the_record_as_it_was_signed(band: Band) -> None:
    [agent] = await band.start_ready(1, variables=HANG)
    assert (await agent.call("GET", "/v1/record", signature=SIGNED_GET))[0] == 404
    record = band.record(agents=1, ranks=1)
    await agent.push(record)

    for path in ("/v1/record", "/v1/status"):
        assert (await agent.call("GET", path))[0] == 401
        assert (await agent.call("GET", path, signature="0" * 64))[0] == 401
    assert (await agent.call("PUT", "/v1/departures", body=b"{}"))[0] == 401
    status, body, headers = await agent.call("GET", "/v1/record", signature=SIGNED_GET)
    assert (status, body) == (200, record.encode())
    assert headers[SIGNATURE_HEADER] == sign(TOKEN, b"record", body)


async def test_status_and_metrics_follow_the_heartbeats(band: Band) -> None:
    variables = {**HANG, "SCRIPT": json.dumps({"0": ["beat(3, 2.5)", "print('beaten')", "hang()"]})}
    [agent] = await band.start_ready(1, variables=variables)
    await agent.push(band.record(agents=1, ranks=1))
    await agent.until_line("beaten")

    status = await agent.status()
    assert (status.job_uid, status.pod_uid, status.index) == (JOB_UID, "pod-0", 0)
    assert (status.generation, status.attempt, status.phase) == (1, 0, AgentPhase.RUNNING)
    series = "step,generation,loss\n3,1,2.5"
    assert status.progress == Progress(step=3, total_steps=100, loss=2.5, series=series)
    code, body, headers = await agent.call("GET", "/metrics")
    assert code == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    samples = [line for line in body.decode().splitlines() if not line.startswith("#")]
    assert samples == [
        "drumline_trainer_generation 1",
        "drumline_trainer_attempt 0",
        "drumline_trainer_step 3",
        "drumline_trainer_total_steps 100",
        "drumline_trainer_loss 2.5",
        'drumline_trainer_rank_up{rank="0"} 1',
    ]


async def test_an_agent_is_alive_at_once_and_ready_when_its_imports_are_done(
    band: Band,
) -> None:
    gate = band.gate()
    agent = await band.start(
        0,
        variables={
            "DRUMLINE_RANK_MODULE": "tests.faults.agent.gated_import",
            "GATE": gate.path,
        },
    )
    await agent.event("agent_started")

    assert (await agent.call("GET", "/healthz"))[0] == 200
    assert (await agent.call("GET", "/readyz"))[0] == 503
    gate.open()
    await agent.event("agent_ready")
    assert (await agent.call("GET", "/readyz"))[0] == 200


async def test_the_store_agent_hands_the_record_on_until_a_late_agent_has_it(band: Band) -> None:
    [first] = await band.start_ready(1, variables=HANG)
    assert (await first.push(band.record(agents=2, ranks=1)))[0] == 200
    await first.event("round_begun")

    late = await band.start(1, variables=HANG)

    assert (await late.event("record_accepted"))["generation"] == 1
    assert (await first.event("record_delivered"))["index"] == 1


async def test_a_lost_push_heals_by_asking_the_leader(band: Band) -> None:
    """The leader is played by the test: it answers beats and questions and pushes nothing."""
    agent = await band.start(1, variables=HANG)
    await agent.event("agent_ready")
    newer = band.record(agents=2, ranks=1, generation=2).encode()
    asked: list[tuple[str, str | None]] = []

    class Leader(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._send(b'{"generation": 2}')

        def do_GET(self) -> None:
            asked.append((self.path, self.headers[SIGNATURE_HEADER]))
            self._send(newer, (SIGNATURE_HEADER, sign(TOKEN, b"record", newer)))

        def _send(self, body: bytes, *headers: tuple[str, str]) -> None:
            self.send_response(200)
            for name, value in (("Content-Length", str(len(body))), *headers):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the base class names it
            pass

    with ThreadingHTTPServer((band.address(0), PORT), Leader) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert (await agent.push(band.record(agents=2, ranks=1)))[0] == 200
        await agent.event("generation_superseded")
        server.shutdown()

    assert (await agent.status()).phase is AgentPhase.WAITING, "no order, no ranks"
    assert asked[0] == ("/v1/record", SIGNED_GET)
