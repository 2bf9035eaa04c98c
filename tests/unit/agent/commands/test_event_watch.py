from __future__ import annotations

import asyncio
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from drumline_agent.commands.event_folder import EventFolder
from drumline_agent.commands.launch_plan import EventWatch
from drumline_agent.commands.progress_lines import ProgressLine


class ComingAndGoing(EventFolder):
    """Storage that fails every other time."""

    fails = False

    def read(self) -> ProgressLine | None:
        self.fails = not self.fails
        if self.fails:
            raise OSError("stale file handle")
        return super().read()


async def test_progress_arrives_in_the_loop_whatever_the_storage_does(tmp_path: Path) -> None:
    heard: asyncio.Queue[ProgressLine] = asyncio.Queue()
    watch = EventWatch(ComingAndGoing(tmp_path), on_progress=heard.put_nowait, poll_seconds=0.005)
    watch.start()
    try:
        with SummaryWriter(str(tmp_path)) as log:
            for step in (1, 2):
                log.add_scalar("loss", 0.5, step)
                log.flush()
                assert await heard.get() == ProgressLine(step=step, loss=0.5)
    finally:
        watch.stop()
