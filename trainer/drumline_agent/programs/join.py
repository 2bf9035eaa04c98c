"""The agent of a pod with a custom template: an init container that waits for its gang.

It accepts the record as every agent does, writes the gang's files for the container that follows,
and exits. The agent of the lowest index delivers the record to all members and exits last; the
others need no agent once they have the record.
"""

from __future__ import annotations

import socket

from drumline_agent.api.record_delivery import deliver_to_all
from drumline_agent.api.service import Service, serving
from drumline_agent.base.events import AgentEvent, log
from drumline_agent.base.exit_codes import STOPPED_EXIT_CODE
from drumline_agent.base.outcome import StopRequested
from drumline_agent.base.settings import AgentSettings
from drumline_agent.base.tasks import first_completed
from drumline_agent.programs import gang_files
from drumline_agent.state.record_store import SignedRecord
from drumline_contract import AgentPhase, ExitCode

ATTEMPT = 0


async def join(settings: AgentSettings) -> int:
    """Wait for the record and write the gang's files. Returns the init container's exit code."""
    async with serving(settings) as service:
        service.status.ready = True
        ending = await first_completed(_join(service), service.wait_for_stop())
    if isinstance(ending, StopRequested):
        log(AgentEvent.TERMINATION_REQUESTED, grace_seconds=0)
        return STOPPED_EXIT_CODE
    log(AgentEvent.FINISHED, exit_code=ExitCode.OK)
    return ExitCode.OK


async def _join(service: Service) -> None:
    signed = await service.records.wait_for_newer(service.records.generation)
    record, settings = signed.record, service.settings
    service.status.generation = signed.generation
    files = gang_files.render(record, own_index=settings.index, own_name=socket.gethostname())
    gang_files.write(settings.gang_folder, files)
    log(
        AgentEvent.GANG_FILES_WRITTEN,
        generation=signed.generation,
        folder=str(settings.gang_folder),
    )
    service.status.phase = AgentPhase.SUCCEEDED
    await _leave(service, signed)


async def _leave(service: Service, signed: SignedRecord) -> None:
    record = signed.record
    if record.store_member.index == service.settings.index:
        await deliver_to_all(signed, port=service.settings.port)
        await service.wait_for_departures(record, attempt=ATTEMPT)
    else:
        await service.report_departure(
            record,
            attempt=ATTEMPT,
            exit_code=ExitCode.OK,
            for_seconds=service.settings.peer_lost_seconds,
        )
