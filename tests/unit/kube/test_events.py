"""Events of a namespace that does not answer delay those of no other."""

from __future__ import annotations

import asyncio

from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, Token
from drumline.kube.errors import Unreachable
from drumline.kube.events import EventRecorder, Occurrence, Regarding
from drumline.kube.kinds import TRAINING_JOBS
from drumline.kube.request import Request


class Hanging(KubeClient):
    """Writes of the namespace `slow` meet their deadline, without the time for it."""

    def __init__(self) -> None:
        super().__init__(Credentials(server="http://127.0.0.1", token=Token(lambda: None)))
        self.sent: list[str] = []

    async def send(self, request: Request) -> bytes:
        self.sent.append(request.namespace)
        if request.namespace == "slow":
            error = Unreachable("deadline")
            error.seconds = 5.0
            raise error
        return b'{"metadata": {}}'


def happened(namespace: str, number: int) -> Occurrence:
    job = Regarding(
        resource=TRAINING_JOBS, namespace=namespace, name=f"j{number}", uid=f"{namespace}{number}"
    )
    return Occurrence(regarding=job, reason="Waiting", action="Place", note="waits")


async def test_a_namespace_that_does_not_answer_is_silent_for_a_minute() -> None:
    client, now = Hanging(), [100.0]
    recorder = EventRecorder(client, instance="test", monotonic=lambda: now[0])
    running = asyncio.create_task(recorder.run())
    for number in range(3):
        recorder.record(happened("slow", number))
        recorder.record(happened("other", number))
    await recorder.flush()
    assert client.sent == ["slow", "other", "other", "other"]
    assert recorder.dropped_total == 3
    now[0] += 60
    recorder.record(happened("slow", 3))
    await recorder.flush()
    assert client.sent[4:] == ["slow"]
    running.cancel()
