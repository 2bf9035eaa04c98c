"""The base of both programs of the agent: its state, its HTTP API, and signal handling."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from drumline_agent.api import departures
from drumline_agent.api.departures import Departure, Departures, wait_for_departures
from drumline_agent.api.routes import Api
from drumline_agent.base.events import AgentEvent, log
from drumline_agent.base.outcome import StopRequested
from drumline_agent.base.settings import AgentSettings
from drumline_agent.http.server import HttpServer, UploadHandler
from drumline_agent.state.notices import SaveNotices
from drumline_agent.state.rank_status import RankStatusStore
from drumline_agent.state.record_store import RecordStore
from drumline_contract import GenerationRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The running agent: its state and API, without ranks."""

    settings: AgentSettings
    status: RankStatusStore
    records: RecordStore
    departures: Departures
    notices: SaveNotices
    api: Api
    stop: asyncio.Event

    async def wait_for_stop(self) -> StopRequested:
        """Wait for SIGTERM or SIGINT."""
        await self.stop.wait()
        return StopRequested()

    async def report_departure(
        self, record: GenerationRecord, *, attempt: int, exit_code: int, for_seconds: float
    ) -> None:
        """Report to the store's agent that this pod has ended its attempt.

        Args:
            record: the generation record.
            attempt: number of the attempt in this generation.
            exit_code: exit code of this pod.
            for_seconds: time after which an unreachable agent counts as ended.
        """
        departure = Departure(
            index=self.settings.index,
            generation=record.generation,
            attempt=attempt,
            exit_code=exit_code,
        )
        await departures.report_departure(
            departure,
            to=record.store_member,
            port=self.settings.port,
            token=self.settings.token,
            for_seconds=for_seconds,
        )

    async def wait_for_departures(self, record: GenerationRecord, *, attempt: int) -> None:
        """Wait until no other member needs this agent any more."""
        followers = [member for member in record.members if member.index != self.settings.index]
        await wait_for_departures(
            self.departures,
            members=followers,
            membership=(record.generation, attempt),
            port=self.settings.port,
            lost_seconds=self.settings.peer_lost_seconds,
        )


@asynccontextmanager
async def serving(
    settings: AgentSettings, *, uploads: UploadHandler | None = None
) -> AsyncGenerator[Service]:
    """Provide a service whose HTTP API answers within the context.

    Raises:
        OSError: it cannot bind its port.
    """
    # 1. Handlers first: a SIGTERM during the start must not kill PID 1.
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # 2. The state, which everything below shares.
    status = RankStatusStore(settings)
    departures = Departures()
    records = RecordStore(
        token=settings.token,
        job_uid=settings.job_uid,
        pod_uid=settings.pod_uid,
        index=settings.index,
        lowest_generation=settings.generation,
    )
    api = Api(token=settings.token, records=records, status=status, departures=departures)
    server = HttpServer(api.answer, address=settings.address, port=settings.port, uploads=uploads)
    # 3. The API. The port is open before a program starts, so that probes succeed.
    async with server:
        log(
            AgentEvent.AGENT_STARTED,
            namespace=settings.namespace,
            job=settings.job,
            index=settings.index,
            port=settings.port,
        )
        yield Service(
            settings=settings,
            status=status,
            records=records,
            departures=departures,
            notices=SaveNotices(status),
            api=api,
            stop=stop,
        )
