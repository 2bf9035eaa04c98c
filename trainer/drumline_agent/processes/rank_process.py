"""One rank's process over its life: its pipes, the state it has reported, its last words.

The process may outlive attempts: it quiesces when the gang breaks and resumes under a new
placement, with the same process id. The state is what the rank itself reports.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from drumline_agent.base.change_notifier import ChangeNotifier
from drumline_agent.processes.output import LineReader, PrefixedOutput, open_line_pipe
from drumline_agent.processes.process_evidence import CpuWatch
from drumline_agent.processes.rank_main import rank_request
from drumline_agent.processes.zygote_client import Child, ZygoteClient
from drumline_agent.protocol.member_reports import ProcessEvidence
from drumline_agent.protocol.membership import Membership
from drumline_agent.rank_protocol.collective_progress import CollectiveProgress
from drumline_agent.rank_protocol.orders import RankOrder, ReportCollectives
from drumline_agent.rank_protocol.placement import Placement

ASK_SECONDS = 1.0


@dataclass(slots=True, kw_only=True)
class RankProcess:
    """A rank of this pod that was forked once."""

    child: Child
    output: PrefixedOutput
    output_reader: LineReader
    message_reader: LineReader
    order_pipe: int
    """Descriptor that orders are written to; -1 once it is closed."""
    placement: Placement
    changed: ChangeNotifier
    quiesced: Membership | None = None
    """The membership whose collectives it has left."""
    error: str = ""
    """The exception that ended it, as it reported it; empty where it reported none."""
    done: bool = False
    """It has reported that its work is done."""
    preempted: bool = False
    """It has ended after a notice to leave, with a checkpoint."""
    kill_reason: str | None = None
    """Why it was killed: it hung while the other ranks waited."""
    ended_by_agent: bool = False
    """True once the agent has killed it. Its exit is then not a fault."""
    cpu: CpuWatch | None = None
    """None until the first reading after the fork."""
    progress: CollectiveProgress | None = None
    """Progress in its collectives, as the rank reported since its newest heartbeat."""
    asked_at: float = 0.0
    """Time of the last request for this progress, on the monotonic clock."""
    entered_at: float = field(default_factory=time.monotonic)
    """Time at which it was forked or resumed."""

    @property
    def alive(self) -> bool:
        """True until the process has ended."""
        return not self.child.exited.done()

    @property
    def is_quiesced(self) -> bool:
        """True if it is alive and waits for a placement above the one it had."""
        if self.kill_reason is not None:
            return False
        left = self.quiesced
        return self.alive and left is not None and left >= self.placement.membership

    @property
    def succeeded(self) -> bool:
        """True if it has done its work."""
        return self.done or self.preempted

    def send_order(self, order: RankOrder) -> bool:
        """Write an order; False if the process does not read any."""
        # One write below PIPE_BUF is atomic: the rank never reads half an order.
        line = order.to_json().encode() + b"\n"
        try:
            return self.order_pipe >= 0 and os.write(self.order_pipe, line) == len(line)
        except OSError:  # the process has closed its end, or the pipe is full
            return False

    def resume(self, placement: Placement) -> None:
        """Continue under another placement, perhaps as another rank."""
        self.placement, self.entered_at = placement, time.monotonic()
        # All results belong to the old placement.
        self.quiesced, self.done, self.preempted, self.error = None, False, False, ""
        self.progress = None
        self.output.rename(f"rank {placement.rank}")

    def read_evidence(self, *, now: float) -> ProcessEvidence:
        """Return the kernel's evidence about the process (`hang_detection`). Reads two files."""
        if not self.alive or not self.child.pid.done():
            return ProcessEvidence.NONE
        if self.cpu is None:
            self.cpu = CpuWatch(self.child.pid.result())
        return self.cpu.read(now=now)

    def ask_for_progress(self, *, now: float) -> None:
        """Request its progress in collectives, at most once in `ASK_SECONDS`."""
        if self.alive and now - self.asked_at >= ASK_SECONDS:
            self.asked_at = now
            generation, attempt = self.placement.membership
            self.send_order(ReportCollectives(generation=generation, attempt=attempt))

    def close(self) -> None:
        """Close the descriptors."""
        self.output_reader.close()
        self.message_reader.close()
        self.close_control()

    def close_control(self) -> None:
        """Send no more orders."""
        if self.order_pipe >= 0:
            os.close(self.order_pipe)
            self.order_pipe = -1


async def fork_rank(
    placement: Placement,
    *,
    zygote: ZygoteClient,
    on_line: Callable[[RankProcess, bytes], None],
    on_exit: Callable[[RankProcess], None],
) -> RankProcess:
    """Make the zygote fork the process of a rank.

    Args:
        placement: rank, devices and addresses of the process.
        zygote: forks the process.
        on_line: called for each line of output.
        on_exit: called at the end.
    """
    output = PrefixedOutput(f"rank {placement.rank}")
    output_reader, output_end = await open_line_pipe(output.line)
    message_reader, messages_end = await open_line_pipe(lambda line: on_line(process, line))
    orders_end, order_pipe = os.pipe()
    # A rank that does not read must not block the agent.
    os.set_blocking(order_pipe, False)
    child = zygote.fork(
        f"{placement.generation}.{placement.attempt}/rank-{placement.rank}",
        rank_request(placement),
        descriptors=[output_end, messages_end, orders_end],
    )
    process = RankProcess(
        child=child,
        output=output,
        output_reader=output_reader,
        message_reader=message_reader,
        order_pipe=order_pipe,
        placement=placement,
        changed=ChangeNotifier(),
    )
    # The callback needs `process`, which the readers above refer to late, too.
    child.exited.add_done_callback(lambda _: on_exit(process))
    return process
