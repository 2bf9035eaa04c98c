"""The agent of a trainer pod: its ranks are forked by a zygote that has imported torch."""

from __future__ import annotations

from drumline_agent.api.service import serving
from drumline_agent.base.outcome import Outcome, StopRequested, Succeeded
from drumline_agent.base.settings import AgentSettings
from drumline_agent.host import prctl
from drumline_agent.member.save_on_termination import save_before_termination
from drumline_agent.processes.local_ranks import LocalRanks
from drumline_agent.processes.reaper import Reaper
from drumline_agent.processes.store_process import RendezvousStore
from drumline_agent.processes.zygote_client import ZygoteClient
from drumline_agent.programs.gang_pod import GangPod, PodParts
from drumline_agent.programs.pod_exit import report_exit
from drumline_agent.snapshots.catalog import SnapshotCatalog
from drumline_agent.snapshots.transfer import SnapshotServer


async def run(settings: AgentSettings) -> int:
    """Run one pod to its end. Returns the pod's exit code."""
    prctl.adopt_orphans()
    reaper = Reaper()
    snapshots = SnapshotCatalog(settings.snapshot_folder)
    server = SnapshotServer(token=settings.token, snapshots=snapshots)
    async with serving(settings, uploads=server) as service:
        zygote = ZygoteClient(module=settings.rank_module, reaper=reaper)
        parts = PodParts(
            make_ranks=lambda listener: LocalRanks(
                settings=settings, zygote=zygote, status=service.status, listener=listener
            ),
            store=RendezvousStore(zygote=zygote, first_port=settings.store_port),
            wait_until_ready=zygote.wait_until_ready,
            wait_until_gone=zygote.wait_until_gone,
            prepare_for_stop=save_before_termination,
            stopped=_stopped,
        )
        try:
            pod = GangPod(service=service, parts=parts, snapshots=snapshots, server=server)
            ending = await pod.live()
        finally:
            await zygote.close()
            snapshots.remove_all()
        return report_exit(service, ending)


def _stopped(done: bool) -> Outcome:  # noqa: FBT001 - the only thing it depends on
    return Succeeded() if done else StopRequested()
