"""The agent of a pod with a template: it starts the user's command, and again after a failure.

It runs from a bundle of its own (`bundle`), with the standard library alone, in any image.
"""

from __future__ import annotations

import asyncio
import socket

from drumline_agent.api.service import serving
from drumline_agent.base.events import AgentEvent, log
from drumline_agent.base.outcome import Failed, Outcome, Preempted
from drumline_agent.base.settings import AgentSettings
from drumline_agent.commands.client_link import ClientLink
from drumline_agent.commands.command_ranks import CommandRanks
from drumline_agent.commands.launch_plan import LaunchPlan
from drumline_agent.commands.pod_clients import PodClients
from drumline_agent.host import prctl
from drumline_agent.member.save_on_termination import announce_termination
from drumline_agent.processes.ranks import RankListener
from drumline_agent.processes.reaper import Reaper
from drumline_agent.processes.store_process import FreshPort
from drumline_agent.processes.zygote_client import ZygoteReady
from drumline_agent.programs import gang_files
from drumline_agent.programs.gang_pod import GangPod, PodParts
from drumline_agent.programs.pod_exit import report_exit
from drumline_agent.protocol.leader_orders import CheckpointSaved, ClientOrder
from drumline_agent.snapshots.catalog import SnapshotCatalog
from drumline_agent.snapshots.transfer import SnapshotServer
from drumline_contract import GenerationRecord


async def run_command(settings: AgentSettings, *, plan: LaunchPlan) -> int:
    """Run one pod to its end. Returns the pod's exit code."""
    # 1. Parts that live as long as the pod. PID 1 also gets the orphans of ranks.
    prctl.adopt_orphans()
    reaper = Reaper()
    snapshots = SnapshotCatalog(settings.snapshot_folder)
    server = SnapshotServer(token=settings.token, snapshots=snapshots)
    link = ClientLink()
    async with serving(settings, uploads=server) as service:
        clients = PodClients(settings=settings, status=service.status, link=link)
        await clients.open()  # before any rank starts and connects
        made: list[CommandRanks] = []

        def make_ranks(listener: RankListener) -> CommandRanks:
            made.append(
                CommandRanks(
                    plan=plan,
                    settings=settings,
                    status=service.status,
                    listener=listener,
                    reaper=reaper,
                    clients=clients,
                    link=link,
                )
            )
            return made[0]

        def on_record(record: GenerationRecord) -> None:
            _write_gang_files(settings, record)
            if record.hang_timeout_seconds is not None:
                made[0].hang_views.patience_seconds = record.hang_timeout_seconds

        def on_client_order(order: ClientOrder | CheckpointSaved) -> None:
            made[0].handle_leader_order(order)

        # 2. The differences between a command and the bundled trainer.
        parts = PodParts(
            make_ranks=make_ranks,
            store=FreshPort(first_port=settings.store_port),
            wait_until_ready=_ready_at_once,
            wait_until_gone=_never_gone,
            prepare_for_stop=announce_termination,
            stopped=_stopped,
            on_record=on_record,
            on_client_order=on_client_order,
            link=link,
        )
        # 3. Run, and clean up in memory: an emptyDir outlives a container.
        events = plan.event_watch(lambda progress: made[0].show(progress) if made else None)
        try:
            if events is not None:
                events.start()
            pod = GangPod(service=service, parts=parts, snapshots=snapshots, server=server)
            ending = await pod.live()
        finally:
            if events is not None:
                events.stop()
            clients.close()
            snapshots.remove_all()
        return report_exit(service, ending)


def _write_gang_files(settings: AgentSettings, record: GenerationRecord) -> None:
    """Write the hosts and the hostfile of the new gang, before its processes are started."""
    files = gang_files.render(
        record, own_index=settings.index, own_name=socket.gethostname(), slots=settings.gpus
    )
    try:
        gang_files.write_in_place(settings.gang_folder, files)
    except OSError as error:  # a full disk: programs that need no names still work
        log(AgentEvent.GANG_FILES_FAILED, reason=str(error))


async def _ready_at_once() -> ZygoteReady:
    return ZygoteReady(seconds=0.0, threads=0)


async def _never_gone() -> Failed:
    return await asyncio.get_running_loop().create_future()


def _stopped(done: bool) -> Outcome:  # noqa: ARG001, FBT001 - an exit code after SIGTERM says nothing
    return Preempted()
