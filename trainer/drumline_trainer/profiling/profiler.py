"""A trace of a window of steps, by rank, for Perfetto or chrome://tracing.

`traces/step-00000120/rank-3.json` begins after 120 steps. On a GPU a snapshot of the allocator's
history lies beside it (`rank-3.memory.pickle`, for PyTorch's memory viewer). Every rank profiles on
its own: nothing here is collective.

With `profile.nvtx` nsys records the window: only its begin and end are marked here, as two
profilers cannot use CUPTI at once.

The window is configured, or on demand: `touch profile-now` in the metrics folder. Every rank reads
the file's time at its logged steps, so all begin at the same step without communication; a rank
that read it just before the touch begins one logged step later. The file is never removed: touch
it again for another window.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from drumline_contract.config import ProfileConfig

REQUEST_FILE = "profile-now"


class WindowEvent(StrEnum):
    """Change of the window at a step boundary."""

    NONE = "none"
    BEGIN = "begin"
    END = "end"


class Window:
    """The profiling windows of one rank.

    Args:
        config: steps, ranks and duration.
        folder: folder of the profiles. None: no profiles.
        look_every: steps between two looks for a request.
    """

    def __init__(self, config: ProfileConfig, *, folder: Path | None, look_every: int) -> None:
        self._start = config.start_step
        self._steps = config.steps
        self._file = None if folder is None else folder / REQUEST_FILE
        self._look_every = look_every
        # The file's present time counts as seen: a request to a former run must not start a window.
        self._seen = self._touched()
        self._ends: int | None = None
        """Number of finished steps at which the open window ends."""

    def at(self, step: int) -> WindowEvent:
        """Call this after every step, and once before the first."""
        # Read the file's time even inside a window, so that a touch there does not open another one
        # later.
        asked = step % self._look_every == 0 and self._asked()
        # An open window ends first. Windows do not nest, because the profiler cannot.
        if self._ends is not None:
            if step < self._ends:
                return WindowEvent.NONE
            self._ends = None
            return WindowEvent.END
        if asked or self._configured(step):
            self._ends = step + self._steps
            return WindowEvent.BEGIN
        return WindowEvent.NONE

    def _configured(self, step: int) -> bool:
        """Return True once.

        A run that resumes within the window profiles the full number of steps.
        """
        if self._start is None or not self._start <= step < self._start + self._steps:
            return False
        # Clearing the start makes the window happen once in a process.
        self._start = None
        return True

    def _asked(self) -> bool:
        before, self._seen = self._seen, self._touched()
        return self._seen > before

    def _touched(self) -> int:
        """Return when the file was touched, in nanoseconds, or 0 if there is none."""
        if self._file is None:
            return 0
        try:
            return self._file.stat().st_mtime_ns
        # A missing file is the usual case. 0 is older than any touch.
        except OSError:
            return 0


class TraceRanges:
    """An observer (`metrics.step_timer`) that does nothing until it is switched on.

    Args:
        nvtx: also push NVTX ranges, where there is a GPU.
    """

    def __init__(self, *, nvtx: bool) -> None:
        self._nvtx = nvtx and torch.cuda.is_available()
        self._active = False
        self._open: list[AbstractContextManager[object]] = []
        """The phase, and the step parts within it."""

    def switch(self, *, on: bool) -> None:
        """Switch on or off; open ranges end."""
        # Ranges end in reverse order, because NVTX and record_function nest by thread.
        while self._open:
            self._leave()
        self._active = on

    def enter(self, phase: str) -> None:
        """Begin a phase, which ends the phase before."""
        while self._open:
            self._leave()
        self.begin(phase)

    def begin(self, name: str) -> None:
        """Begin a range within the open one."""
        if not self._active:
            return
        named = ExitStack()
        named.enter_context(record_function(name))
        if self._nvtx:
            torch.cuda.nvtx.range_push(name)  # pyright: ignore[reportUnknownMemberType] - untyped
            named.callback(torch.cuda.nvtx.range_pop)
        self._open.append(named)

    def end(self) -> None:
        """End the innermost range."""
        if self._open:
            self._leave()

    def _leave(self) -> None:
        self._open.pop().__exit__(None, None, None)


MAX_MEMORY_EVENTS = 100_000
_cuda_memory: Any = torch.cuda.memory
"""Its functions for memory snapshots are documented under private names."""

logger = logging.getLogger(__name__)


class Profiler:
    """The profiler of one rank; `ranges` must be an observer of the run.

    Args:
        config: steps, ranks and duration.
        device: device of the rank.
        folder: folder of the profiles. None: no profiles.
        look_every: steps between two looks for a request.
    """

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
        # An unfinished trace is not written: its last step is cut off.
        if self._profile is not None:
            self._stop()

    def _begin(self, step: int) -> None:
        activities = [ProfilerActivity.CPU]
        if self._on_gpu:
            activities.append(ProfilerActivity.CUDA)
            # The bound limits the history in memory, about one entry for each allocation.
            _cuda_memory._record_memory_history(max_entries=MAX_MEMORY_EVENTS)  # noqa: SLF001 - documented API
        self._began = step
        # Shapes explain kernels in the trace. acc_events keeps events of all cycles.
        self._profile = profile(activities=activities, record_shapes=True, acc_events=True)
        self._profile.start()
        # Ranges begin after the profiler, which otherwise sees their ends only.
        self.ranges.switch(on=True)

    def _write(self, *, rank: int) -> None:
        assert self._folder is not None  # noqa: S101 - there was one to begin
        folder = self._folder / "traces" / f"step-{self._began:08d}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self._on_gpu:
                # The allocator's snapshot comes before the stop, which ends its history.
                _cuda_memory._dump_snapshot(str(folder / f"rank-{rank}.memory.pickle"))  # noqa: SLF001 - as above
            self._stop().export_chrome_trace(str(folder / f"rank-{rank}.json"))
            logger.info("trace: %s", folder)
        except OSError as error:  # a trace must not end the run
            logger.warning("no trace of rank %d: %s", rank, error)
        self.close()

    def _stop(self) -> profile:
        assert self._profile is not None  # noqa: S101 - asked by the callers
        # Clear the field first, so that an error in `stop` cannot stop the profiler twice.
        stopped, self._profile = self._profile, None
        self.ranges.switch(on=False)
        stopped.stop()
        if self._on_gpu:
            _cuda_memory._record_memory_history(enabled=None)  # noqa: SLF001 - as above
        return stopped

    def _mark_for_nsys(self, *, begin: bool) -> None:
        if self._on_gpu:
            (torch.cuda.profiler.start if begin else torch.cuda.profiler.stop)()
