"""One rank's process over its life: its pipes, what it said last, where it stands.

The process may outlive attempts: it parks when the gang breaks and resumes under a new placement,
with the same process id. What it does in between it says itself; this file only writes it down.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from drumline_trainer.agent.base.change_notifier import ChangeNotifier
from drumline_trainer.agent.leader.hang_detection import BUSY, STOPPED
from drumline_trainer.agent.processes.output import LineReader, PrefixedOutput, open_line_pipe
from drumline_trainer.agent.processes.rank_main import rank_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from drumline_trainer.agent.processes.zygote_client import Child, ZygoteClient
    from drumline_trainer.agent.protocol.leader_orders import Membership
    from drumline_trainer.rank_protocol.orders import RankOrder
    from drumline_trainer.rank_protocol.placement import Placement

BUSY_SHARE = 0.3
"""Of one processor: who uses more is at work."""


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
    """The membership it has left; it rests."""
    error: str = ""
    """What its own supervisor said it died of."""
    done: bool = False
    """It has said that it is through."""
    preempted: bool = False
    """It has left on request, with a checkpoint."""
    kill_reason: str = ""
    """Why it was killed as the one who keeps the others waiting."""
    ended_by_agent: bool = False
    """It was ended by us: its exit means nothing."""
    cpu_seconds: float = 0.0
    cpu_read_at: float = 0.0
    evidence: str = ""
    entered_at: float = field(default_factory=time.monotonic)
    """When it was forked or resumed."""

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return not self.child.exited.done()

    @property
    def is_quiesced(self) -> bool:
        """Alive, to stay so, and waiting for a placement above the one it had."""
        if self.kill_reason:
            return False
        return (
            self.alive and self.quiesced is not None and self.quiesced >= self.placement.membership
        )

    @property
    def succeeded(self) -> bool:
        """Whether it has done its work."""
        return self.done or self.preempted

    @property
    def last_words(self) -> str:
        """What it said last."""
        return self.error or self.output.last_line

    def send_order(self, order: RankOrder) -> bool:
        """Write an order; False if the process does not take any."""
        line = order.to_json().encode() + b"\n"
        try:
            return self.order_pipe >= 0 and os.write(self.order_pipe, line) == len(line)
        except OSError:  # its end is closed, or the pipe is full: it does not read
            return False

    def resume(self, placement: Placement) -> None:
        """It is another rank from now on, perhaps of another number."""
        self.placement, self.entered_at = placement, time.monotonic()
        self.quiesced, self.done, self.preempted, self.error = None, False, False, ""
        self.output.rename(f"rank {placement.rank}")

    def read_evidence(self, *, now: float) -> str:
        """Read what the kernel says of the process; see `hangs`. Cheap: one small file."""
        if not self.alive or not self.child.pid.done():
            return ""
        try:
            text = Path(f"/proc/{self.child.pid.result()}/stat").read_text()
        except OSError:
            return ""
        fields = text.rpartition(")")[2].split()
        cpu_seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        passed, used = now - self.cpu_read_at, cpu_seconds - self.cpu_seconds
        if passed >= 0.5:  # the kernel counts in hundredths
            self.cpu_read_at, self.cpu_seconds = now, cpu_seconds
            busy = used >= BUSY_SHARE * passed or fields[0] == "D"
            self.evidence = BUSY if busy else ""
        return STOPPED if fields[0] in "Tt" else self.evidence

    def close(self) -> None:
        """Give the descriptors back."""
        self.output_reader.close()
        self.message_reader.close()
        self.close_control()

    def close_control(self) -> None:
        """No orders any more."""
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
    """Have the zygote fork the process of a rank."""
    output = PrefixedOutput(f"rank {placement.rank}")
    printed, output_end = await open_line_pipe(output.line)
    said, words_end = await open_line_pipe(lambda line: on_line(process, line))
    orders_end, control = os.pipe()
    os.set_blocking(control, False)
    child = zygote.fork(
        f"{placement.generation}.{placement.attempt}/rank-{placement.rank}",
        rank_request(placement),
        descriptors=[output_end, words_end, orders_end],
    )
    process = RankProcess(
        child=child,
        output=output,
        output_reader=printed,
        message_reader=said,
        order_pipe=control,
        placement=placement,
        changed=ChangeNotifier(),
    )
    child.exited.add_done_callback(lambda _: on_exit(process))
    return process
