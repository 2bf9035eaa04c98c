"""A trace of a window of steps, by rank, for Perfetto or chrome://tracing.

`traces/step-00000120/rank-3.json` begins after 120 steps. On a GPU a snapshot of the allocator's
history lies beside it (`rank-3.memory.pickle`, for PyTorch's memory viewer). Every rank profiles on
its own: nothing here is collective.

With `profile.nvtx` nsys records the window: only its begin and end are marked here, as two
profilers cannot use CUPTI at once.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from drumline_trainer.config import ProfileConfig
from drumline_trainer.profiling.ranges import TraceRanges
from drumline_trainer.profiling.window import Window, WindowEvent

MOST_MEMORY_EVENTS = 100_000
_cuda_memory: Any = torch.cuda.memory
"""Its functions for memory snapshots are documented under private names."""

logger = logging.getLogger(__name__)


class Profiler:
    """The profiler of one rank; `ranges` must be an observer of the run."""

    def __init__(
        self,
        config: ProfileConfig,
        *,
        device: torch.device,
        folder: Path | None,
        look_every: int,
    ) -> None:
        self._window = Window(config, folder=folder, look_every=look_every)
        self._folder = folder
        self._on_gpu = device.type == "cuda"
        self._for_nsys = config.nvtx
        self._profile: profile | None = None
        self._began = 0
        self.ranges = TraceRanges(nvtx=True)
        self.ranges.switch(on=config.nvtx)

    def boundary(self, step: int, *, rank: int) -> None:
        """Call this after every step, and once before the first."""
        match self._window.at(step):
            case WindowEvent.BEGIN if self._for_nsys:
                self._mark_for_nsys(begin=True)
            case WindowEvent.END if self._for_nsys:
                self._mark_for_nsys(begin=False)
            case WindowEvent.BEGIN if self._folder is not None:
                self._begin(step)
            case WindowEvent.END if self._profile is not None:
                self._write(rank=rank)
            case _:
                pass

    def close(self) -> None:
        """Discard a trace that an error has cut short."""
        if self._profile is not None:
            self._stop()

    def _begin(self, step: int) -> None:
        activities = [ProfilerActivity.CPU]
        if self._on_gpu:
            activities.append(ProfilerActivity.CUDA)
            _cuda_memory._record_memory_history(max_entries=MOST_MEMORY_EVENTS)  # noqa: SLF001 - documented API
        self._began = step
        self._profile = profile(activities=activities, record_shapes=True, acc_events=True)
        self._profile.start()
        self.ranges.switch(on=True)

    def _write(self, *, rank: int) -> None:
        assert self._folder is not None  # noqa: S101 - there was one to begin
        folder = self._folder / "traces" / f"step-{self._began:08d}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self._on_gpu:
                _cuda_memory._dump_snapshot(str(folder / f"rank-{rank}.memory.pickle"))  # noqa: SLF001 - as above
            self._stop().export_chrome_trace(str(folder / f"rank-{rank}.json"))
            logger.info("trace: %s", folder)
        except OSError as error:  # a trace must not end the run
            logger.warning("no trace of rank %d: %s", rank, error)
        self.close()

    def _stop(self) -> profile:
        assert self._profile is not None  # noqa: S101 - asked by the callers
        stopped, self._profile = self._profile, None
        self.ranges.switch(on=False)
        stopped.stop()
        if self._on_gpu:
            _cuda_memory._record_memory_history(enabled=None)  # noqa: SLF001 - as above
        return stopped

    def _mark_for_nsys(self, *, begin: bool) -> None:
        if self._on_gpu:
            (torch.cuda.profiler.start if begin else torch.cuda.profiler.stop)()
