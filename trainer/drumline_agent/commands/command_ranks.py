"""The ranks of a pod that runs a command of the user's image.

Each attempt starts new processes, because an unknown program cannot be resumed. The work of a
process is done only if it ends with exit code 0 without being asked to end. A rank that fails ends
the attempt: the leader has all pods stop their ranks and start them again.

A notice (a drain, a spot node, a preemption) reaches every process as a signal, because a sharded
save needs all of them. An exit after the notice is not a fault: the pod waits for the next
membership.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from drumline_agent.base.change_notifier import ChangeNotifier
from drumline_agent.base.events import AgentEvent, log
from drumline_agent.base.settings import AgentSettings
from drumline_agent.commands.client_link import ClientLink
from drumline_agent.commands.command_faults import CommandFaults
from drumline_agent.commands.command_process import CommandNotStartedError, CommandProcess, kill
from drumline_agent.commands.command_starter import CommandStarter
from drumline_agent.commands.data_workers import kill_orphaned_data_workers
from drumline_agent.commands.end_notice import EndNotice
from drumline_agent.commands.launch_environment import run_id
from drumline_agent.commands.launch_plan import LaunchPlan
from drumline_agent.commands.leftovers import kill_all
from drumline_agent.commands.loss_watch import LossWatch
from drumline_agent.commands.nested_launch import nested_world_size
from drumline_agent.commands.own_patterns import work_budget
from drumline_agent.commands.pod_clients import PodClients, snapshot_info
from drumline_agent.commands.process_activity import running_processes
from drumline_agent.commands.progress_lines import ProgressLine
from drumline_agent.commands.python_stacks import is_printed_stack
from drumline_agent.commands.rank_views import RankViews
from drumline_agent.commands.stack_dump import MAX_DUMP_LINES, show_places
from drumline_agent.commands.step_history import StepHistory
from drumline_agent.commands.terminal_lines import REDRAWN
from drumline_agent.processes.ranks import RankListener
from drumline_agent.processes.reaper import Reaper
from drumline_agent.protocol.leader_orders import CheckpointSaved, ClientOrder, CommittedCheckpoint
from drumline_agent.protocol.member_reports import RankView
from drumline_agent.protocol.rank_stacks import RankStack
from drumline_agent.rank_protocol.messages import NoticeSaved
from drumline_agent.rank_protocol.orders import RankOrder, SaveNotice, Withdraw
from drumline_agent.rank_protocol.placement import Placement
from drumline_agent.state.notices import is_of_a_pod
from drumline_agent.state.rank_status import RankStatusStore
from drumline_client.wire import (
    RestoreFailed,
    SnapshotWritten,
    StepReport,
    decode_agent_message,
)
from drumline_contract import Launch, RemarkKind

STOP_SECONDS = 1.0
"""Between SIGTERM and SIGKILL for the processes of an attempt that has failed: they can save
nothing any more, only flush what they log. A rank that waits for a dead peer does neither."""
KILL_SECONDS = 5.0
_POLL_SECONDS = 0.02
"""Seconds between two looks at processes below a rank."""
SAVING_PART = 0.5
"""Share of the grace period in which ranks can agree to save before their pod ends."""
NO_ANSWER = "the program does not acknowledge saves"
"""To a notice: only a program that uses the client can say that it has saved."""


class CommandRanks:
    """The processes of this pod's command, by local rank."""

    def __init__(
        self,
        *,
        plan: LaunchPlan,
        settings: AgentSettings,
        status: RankStatusStore,
        listener: RankListener,
        reaper: Reaper,
        clients: PodClients,
        link: ClientLink,
        inherited: Mapping[str, str] = os.environ,
    ) -> None:
        """Make the ranks of a pod; none runs yet.

        Args:
            plan: what to start.
            settings: settings of the agent.
            status: what the agent reports.
            listener: receives what happens to the processes.
            reaper: waits for them.
            clients: clients of the ranks that use one.
            link: link to the leader.
            inherited: the environment of the image, which they get.
        """
        self._plan = plan
        self._settings = settings
        self._status = status
        self._listener = listener
        self._clients = clients
        # Clients may connect before any rank is known, so the callbacks are set first.
        clients.on_report = self._on_report
        clients.on_snapshot = self._on_snapshot
        self._link = link
        # How processes are started, and how their output and ends are read.
        self._starter = CommandStarter(
            plan=plan, settings=settings, reaper=reaper, clients=clients, inherited=inherited
        )
        self._pattern_budget = work_budget()
        self._watch = plan.pattern_watch()
        self._losses = LossWatch()
        self._faults = CommandFaults(index=settings.index)
        self._processes: dict[int, CommandProcess] = {}
        self._steps: dict[int, StepHistory] = {}
        self._notice = EndNotice(plan.launch, grace_seconds=settings.grace_seconds)
        self._has_left = False
        """A notice to leave is answered: this attempt's processes end, and with them the pod."""
        # How they look to the detection of hangs.
        self.hang_views = RankViews(
            clients_of=clients.of,
            work_of=status.work_of,
            watches_activity=plan.launch.watches_activity,
            running_processes=running_processes,
            on_scan=self._refuse_nested_launchers,
        )
        self.changes = ChangeNotifier()
        """Notified when a process has ended."""
        self.shows_places = True

    @property
    def all_preempted(self) -> bool:
        """True if all have left. Only if they acknowledge saves; otherwise the operator decides."""
        return self._has_left and not any(each.alive for each in self._processes.values())

    def views(self) -> tuple[RankView, ...]:
        """Return a view of every process of the present attempt, as of now."""
        return self.hang_views.of(self._present(), now=time.monotonic())

    def _present(self) -> list[CommandProcess]:
        # Processes of an earlier attempt are being stopped: their silence has no meaning.
        present = (self._status.generation, self._status.attempt)
        return [
            process
            for process in self._processes.values()
            if process.placement.membership == present
        ]

    def _refuse_nested_launchers(
        self, processes: Sequence[CommandProcess], running: Mapping[int, tuple[int, float]]
    ) -> None:
        """Report a rank that has started ranks of its own; a restart would do the same."""
        if self._plan.launch.launch is Launch.PER_POD:
            return
        for process in processes:
            placement = process.placement
            # A single rank may start ranks: no other rank starts the same ranks again.
            if placement.world_size == 1:
                continue
            size = nested_world_size(
                process.pid,
                world_size=placement.world_size,
                run_id=run_id(placement),
                processes=running,
            )
            if size is not None:
                reason = (
                    f"rank {placement.rank} started ranks of its own (WORLD_SIZE {size}, not"
                    f" {placement.world_size}): its command starts a launcher such as torchrun;"
                    " set template.launch to PerPod"
                )
                fault = self._faults.not_started(placement.rank, placement.membership, reason)
                self._listener.on_fault(fault)
                return

    def send_to_all(self, order: RankOrder) -> None:
        """Act on a notice: the ranks agree to save, or it reaches them as a signal.

        A signal, of the end of a pod alone, goes to a program that acknowledges no saves, and to
        one that has not saved in half of its grace period.
        """
        match order:
            case SaveNotice(id=name) if self._status.acknowledges_saves:
                if is_of_a_pod(name):
                    # The ranks may not agree in time, and the pod ends either way.
                    loop, grace = asyncio.get_running_loop(), self._settings.grace_seconds
                    loop.call_later(grace * SAVING_PART, self._give_up_saving, self._processes)
                self._link.request_save(order)
            case SaveNotice(id=name):
                if is_of_a_pod(name):
                    self._notify_all()
                self._listener.on_saved(NoticeSaved(notice=name, error=NO_ANSWER))
            case Withdraw(id=name):
                self._link.withdraw_save(name)
            case _:
                pass

    def show(self, progress: ProgressLine) -> None:
        """Use progress from event files as a heartbeat of the lowest rank of this pod."""
        # Event files belong to one rank, usually rank 0.
        for number in sorted(self._processes)[:1]:
            process = self._processes[number]
            if process.alive and not self._history(process.placement).has_client:
                self._watch.close()
                self._beat(process.placement, progress)

    def handle_leader_order(self, order: ClientOrder | CheckpointSaved) -> None:
        """Pass on what the leader has for the clients, or act on what they have saved."""
        if isinstance(order, ClientOrder):
            message = decode_agent_message(order.line.encode())
            if message is not None:
                self._clients.joined.send(message)
            return
        if order.step is not None:
            # 1. A complete checkpoint: later heartbeats and a restart start from it.
            self._clients.checkpoint = order.step, order.path
            self._status.note_checkpoint(CommittedCheckpoint(step=order.step, digest=""))
            for received in list(self._status.heartbeats.values()):
                shown = replace(received.heartbeat, checkpoint_step=order.step)
                self._status.record_heartbeat(shown)
        # Checkpoints that the program writes on its own answer no notice.
        if not order.notice:
            return
        self._clients.joined.settled()
        # 2. The ranks leave. A pod's own end has no PREEMPTED exit: its kubelet ends it anyway.
        if order.leave and (order.step is not None or is_of_a_pod(order.notice)):
            self._has_left = not is_of_a_pod(order.notice)
            self._notify_all()
            loop, grace = asyncio.get_running_loop(), self._settings.grace_seconds
            loop.call_later(grace, self._kill_the_rest, self._processes)
            self.changes.notify()
        self._listener.on_saved(
            NoticeSaved(notice=order.notice, step=order.step, error=order.error)
        )

    def kill(self, numbers: Iterable[int], *, reason: str) -> None:
        """Kill processes that hang."""
        wanted = set(numbers)
        for process in self._processes.values():
            if process.placement.rank in wanted and process.alive:
                log(AgentEvent.RANK_KILLED, rank=process.placement.rank, reason=reason)
                process.kill_reason = reason
                process.signal_group(signal.SIGKILL)

    async def places(self) -> tuple[RankStack, ...]:
        """Return where the ranks of a hung attempt are in their program. It ends them."""
        alive = [process for process in self._present() if process.alive]
        return await show_places(alive, running=running_processes())

    async def quiesce(self) -> None:
        """End all processes: at once after a failure, within their grace after a notice."""
        # Ranks with the notice may be saving: let them finish within the grace period.
        if self._notice.given:
            await self._wait_for_exits(self._notice.seconds_left)
        await self._stop(STOP_SECONDS)

    async def start_attempt(self, placements: Sequence[Placement]) -> None:
        """Start a process for each placement. Raises OSError where the pod is out of resources."""
        first = placements[0]
        # 1. Nothing of the attempt before may write to the log, the store or the GPUs any more.
        await self._stop(STOP_SECONDS)
        self._close_outputs()
        self._processes, self._has_left = {}, False
        await self._notice.begin_attempt()
        self._clients.begin_attempt(placements)
        # 2. Forget its state, then start the new processes.
        self._status.begin_attempt(
            generation=first.generation,
            attempt=first.attempt,
            ranks=range(first.rank, first.rank + len(placements)),
        )
        for placement in placements:
            self._history(placement).begin_attempt()
            try:
                self._processes[placement.local_rank] = await self._start(placement)
            # The image cannot run the command, so further ranks would fail in the same way.
            except CommandNotStartedError as error:
                fault = self._faults.not_started(placement.rank, placement.membership, str(error))
                self._listener.on_fault(fault)
                return
        # 3. Report. Ranks that show no steps get a first heartbeat, so that the start is visible.
        log(
            AgentEvent.RANKS_STARTED,
            generation=first.generation,
            attempt=first.attempt,
            pids={each.placement.rank: each.pid for each in self._processes.values()},
            resumed=[],
            preloaded=[each.placement.rank for each in self._processes.values() if each.preloaded],
            world_size=first.world_size,
            restore_snapshot=first.restore_snapshot,
        )
        for placement in placements:
            if not self._history(placement).shows_steps:
                self._beat(placement, None)

    async def end(self, *, grace_seconds: float = 0.0) -> bool:
        """End every process and print its remaining output. Return whether all had done their work.

        With a grace period, processes that do not have the notice get it first. Processes that
        leave have the rest of their grace period.
        """
        self._starter.close()
        # Before the signals: an exit after a notice says nothing about the work.
        well = bool(self._processes) and all(each.done for each in self._processes.values())
        if grace_seconds > 0:
            self._notify_all()
            await self._wait_for_exits(grace_seconds)
        elif self._has_left:
            await self._wait_for_exits(self._notice.seconds_left)
        await self._stop(0.0)
        self._close_outputs()
        return well

    async def wait_for_teardown(self) -> None:
        """Return at once: a process has no teardown after its end."""

    async def _start(self, placement: Placement) -> CommandProcess:
        process = await self._starter.start(
            placement,
            on_line=self._on_line,
            progress=self._plan.progress_reader(self._pattern_budget, self._watch),
        )
        # After the start: the callback needs the process, which may have ended already.
        process.exited.add_done_callback(lambda _: self._on_exit(process))
        return process

    def _on_line(self, process: CommandProcess, line: bytes) -> None:
        process.heard_at = time.monotonic()
        process.activity.printed(at=process.heard_at)
        text, is_bar = line.decode(errors="replace"), line.endswith(REDRAWN)
        # Stacks are printed, but they are neither progress nor the last words of the program.
        if is_printed_stack(text):
            process.output.line(line, keep=False)
            if process.dump is not None and len(process.dump) < MAX_DUMP_LINES:
                process.dump.append(text)
            return
        shown = process.progress.read(text.rstrip("\r"))
        # A bar of hours would fill the log, so only some of its states are printed.
        if not is_bar or (text.strip() and process.may_print_bar()):
            process.output.line(line)
        # The client's reports are exact. Printed steps must not overwrite them.
        if not self._history(process.placement).has_client:
            if shown is not None:
                self._watch.shown()
                self._beat(process.placement, shown)
            elif (remark := self._losses.read_unknown(text)) is not None:
                self._status.set_remark(RemarkKind.LOSS_NOT_FINITE, remark)
        remark = self._watch.printed(at=process.heard_at)
        self._status.set_remark(RemarkKind.PROGRESS_UNREADABLE, remark)
        hint = self._watch.hint()
        if hint and process.placement.rank == 0:
            # The program's own last words explain its end.
            process.output.line(hint.encode(), keep=False)

    def _on_report(self, rank: int, report: StepReport) -> None:
        """Record a client's report. The lowest rank represents all ranks of a launcher."""
        for process in self._processes.values():
            clients = self._clients.of(process.placement)
            if process.alive and clients and clients[0].hello.rank == rank:
                self._beat_of_client(process.placement, report)

    def _on_snapshot(self, rank: int, message: SnapshotWritten | RestoreFailed) -> None:
        """Pass on a snapshot that a rank has written, or note that it cannot restore one."""
        each = self._settings.ranks_per_process
        for process in self._processes.values():
            # Ranks that a launcher starts are numbered in blocks, one block per process.
            is_here = rank // each == process.placement.rank
            if isinstance(message, RestoreFailed):
                if is_here or each > 1:  # a launcher's rank may be one that belongs elsewhere
                    process.failed_restore = True
                    error = message.error
                    log(AgentEvent.SNAPSHOT_REFUSED, rank=rank, step=message.step, reason=error)
            elif is_here:
                info = snapshot_info(message, process.placement, rank=rank, ranks_per_process=each)
                if info is not None:
                    self._listener.on_snapshot(info, on_copied=lambda _: None)

    def _beat_of_client(self, placement: Placement, report: StepReport) -> None:
        # The client makes patterns superfluous, even those that match nothing.
        self._watch.close()
        if report.step is not None:
            self._starter.trains()
            shown = ProgressLine(
                step=report.step, loss=report.loss, not_finite=report.not_finite[:8]
            )
            self._status.set_remark(RemarkKind.LOSS_NOT_FINITE, self._losses.read(shown))
        checkpoint = self._clients.checkpoint
        heartbeat = self._history(placement).reported(
            report,
            placement,
            checkpoint_step=None if checkpoint is None else checkpoint[0],
            tokens_per_second=self._clients.tokens_per_second,
            now=time.monotonic(),
        )
        self._status.record_heartbeat(heartbeat)
        self._listener.on_heartbeat(heartbeat)

    def _on_exit(self, process: CommandProcess) -> None:
        number, code = process.placement.rank, process.exited.result()
        log(AgentEvent.RANK_EXITED, rank=number, code=code, reason=f"exit status {code}")
        # 1. Show the end in the status, unless a new attempt has begun.
        if process.placement.membership == (self._status.generation, self._status.attempt):
            self._status.ranks_up[number] = False
        process.output_reader.finish()  # its last words come before the verdict on its exit
        # 2. Was it done, was it asked to end, or is it a fault?
        leaves = code == 0 and self._clients.joined.leaves
        unasked = not process.ended_by_agent and not self._notice.given and not leaves
        process.done = unasked and code == 0
        if code == 0:
            self._clients.ended_well(process.placement)
        # Its children hold GPUs and the pipe. After a notice they may save: a shell that runs a
        # script ends at SIGTERM, before the script does.
        elif unasked:
            process.signal_group(signal.SIGKILL)
        if not unasked:
            kill_orphaned_data_workers(process.pid)
        # 3. Wake those that wait for exits, then report.
        self.changes.notify()
        if unasked and not process.done:
            step = self._status.trained_step or 0
            self._listener.on_fault(self._faults.process_ended(process, code, step=step))

    def _beat(self, placement: Placement, shown: ProgressLine | None) -> None:
        """Record a heartbeat for a process, which sends none itself."""
        # A late line of a process of the attempt before.
        if placement.membership != (self._status.generation, self._status.attempt):
            return
        if shown is not None:
            self._starter.trains()
            self._status.set_remark(RemarkKind.LOSS_NOT_FINITE, self._losses.read(shown))
        heartbeat = self._history(placement).heartbeat(shown, placement, now=time.monotonic())
        self._status.record_heartbeat(heartbeat)
        self._listener.on_heartbeat(heartbeat)

    def _history(self, placement: Placement) -> StepHistory:
        return self._steps.setdefault(placement.local_rank, StepHistory())

    def _give_up_saving(self, processes: Mapping[int, CommandProcess]) -> None:
        """Signal the processes, because their pod ends before its ranks have saved."""
        # A new attempt has replaced the dictionary, and its processes have time of their own.
        if processes is self._processes:
            self._notify_all()

    def _kill_the_rest(self, processes: Mapping[int, CommandProcess]) -> None:
        """Kill processes that have saved and have not ended."""
        for process in processes.values():
            kill(process)

    def _notify_all(self) -> None:
        self._notice.give(self._processes.values())

    async def _stop(self, grace_seconds: float) -> None:
        """End the running processes. Their exits are not faults."""
        # 1. Ask politely, so that loggers flush.
        running = [process for process in self._processes.values() if process.alive]
        for process in running:
            process.ended_by_agent = True
            if grace_seconds > 0:
                process.signal(signal.SIGTERM)
        await self._wait_for_exits(grace_seconds)
        # 2. Kill all, ended ones too: their children may live on.
        for process in self._processes.values():
            kill(process)
        await self._wait_for_exits(KILL_SECONDS)
        if self._processes:
            await self._kill_leftovers()

    async def _kill_leftovers(self) -> None:
        """Kill what these processes started in other sessions, such as torchrun's workers."""
        with suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                # Again until none is found: one of them may start another meanwhile.
                while pids := self._starter.leftovers():
                    kill_all(pids)
                    await asyncio.sleep(_POLL_SECONDS)

    async def _wait_for_exits(self, seconds: float) -> None:
        """Wait until the processes have ended, and all in their sessions."""
        processes = self._processes.values()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(asyncio.shield(process.exited) for process in processes))
                while any(  # noqa: ASYNC110 - no event tells the end of a foreign child
                    process.has_session for process in processes
                ):
                    await asyncio.sleep(_POLL_SECONDS)

    def _close_outputs(self) -> None:
        for process in self._processes.values():
            process.output_reader.finish()
            process.output_reader.close()
