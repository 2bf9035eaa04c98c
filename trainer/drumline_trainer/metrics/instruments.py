"""Everything that watches one rank's run, behind a few calls of the reporter.

None of it is collective, and none of it can end a run: what cannot be written is report in the log.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from drumline_trainer.config import TrainerConfig
from drumline_trainer.layout import Axis, Layout
from drumline_trainer.metrics.cuda_clock import CudaClock
from drumline_trainer.metrics.memory import MemoryMeter, MemoryUsage
from drumline_trainer.metrics.sinks import Sink, check_packages, open_sinks
from drumline_trainer.metrics.step_record import StepRecord
from drumline_trainer.metrics.step_timer import OTHER, Observer, StepTimer, observe, per_step
from drumline_trainer.preflight import groups_of
from drumline_trainer.profiling.flight_recorder import (
    FlightRecorder,
    dump_on_signal,
    set_recorder_defaults,
    write_dump,
)
from drumline_trainer.profiling.profiler import Profiler
from drumline_trainer.rank_protocol.heartbeat import Phase
from drumline_trainer.rank_protocol.placement import Placement

FOLDER = "metrics"
"""In the checkpoint folder."""
_SETTLED = 5
"""Logged steps until a run is judged for the first time."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Instruments:
    """Of one rank process, over all its memberships. As it is made here, it only takes times."""

    timer: StepTimer = field(default_factory=StepTimer)
    flight: FlightRecorder = field(default_factory=FlightRecorder)
    memory: MemoryMeter = field(default_factory=lambda: MemoryMeter(device=torch.device("cpu")))
    profiler: Profiler | None = None
    folder: Path | None = None
    """Of figures, traces and dumps; None: none are written."""
    config: TrainerConfig | None = None
    """Of the sinks; None: there are none."""
    totals: Counter[str] = field(default_factory=Counter[str])
    """Seconds by part, without the first window: it warms up."""
    _sinks: list[Sink] | None = None
    _placement: Placement | None = None
    _windows: int = 0
    _spoken: bool = False

    @classmethod
    def open(
        cls, config: TrainerConfig, *, placement: Placement, device: torch.device
    ) -> Instruments:
        """What the configuration asks for, and the process's observers.

        Raises:
            ConfigError: a package is missing, or a folder.
        """
        check_packages(config)
        folder = metrics_folder(config, placement=placement)
        on_gpu = device.type == "cuda"
        if on_gpu:
            set_recorder_defaults(folder)
        made = cls(
            timer=StepTimer(CudaClock()) if on_gpu else StepTimer(),
            memory=MemoryMeter(device=device),
            folder=folder,
            config=config,
            profiler=Profiler(
                config.profile, device=device, folder=folder, look_every=config.log_every_steps
            ),
        )
        made.rejoin(placement)
        observe(*made._observers)
        dump_on_signal(made.dump)
        return made

    def rejoin(self, placement: Placement) -> None:
        """Another membership; rank 0 writes the figures, whoever that is now."""
        self._placement, self._spoken = placement, False
        self.flight.restart()
        if placement.rank != 0:
            self._close_sinks()
        elif self._sinks is None and self.config is not None:
            self._sinks = open_sinks(self.config, folder=self.folder)

    def set_groups(self, layout: Layout, *, rank: int) -> None:
        """The groups of this rank in this membership, for the record of a hang."""
        pipeline = layout.group_of(Axis.PIPELINE, rank)
        ends = {"tied": [pipeline[0], pipeline[-1]]} if len(pipeline) > 1 else {}
        self.flight.peers = groups_of(layout, rank) | ends

    def begin(self, step: int) -> None:
        """Training goes on after so many finished steps."""
        self.timer.restart()
        self._boundary(step)

    def enter(self, phase: Phase) -> None:
        """This phase runs from now on."""
        for observer in self._observers:
            observer.enter(phase)
        self.memory.enter(phase)

    def finish_step(self, step: int) -> None:
        """A step is over."""
        for observer in self._observers:
            observer.enter(OTHER)
        self._boundary(step)

    @property
    def warmed_up(self) -> bool:
        """Whether `totals` are of some length."""
        return self._windows >= _SETTLED and any(self.totals.values())

    @property
    def writes_metrics(self) -> bool:
        """Whether this rank writes figures down."""
        return bool(self._sinks)

    def collect(self, *, steps: int) -> tuple[dict[str, float], MemoryUsage]:
        """Mean seconds of a step by part since the last time, and the memory."""
        seconds = self.timer.take()
        self._windows += 1
        if self._windows == 2:
            self.totals.clear()
        self.totals.update(seconds)
        return per_step(seconds, steps=steps), self.memory.take()

    def publish(self, record: StepRecord) -> None:
        """Give a record to the sinks; a sink that fails is closed and said to be."""
        for sink in list(self._sinks or []):
            try:
                sink.write(record)
            except Exception as error:  # noqa: BLE001 - figures end no run
                logger.warning("%s takes no more figures: %s", type(sink).__name__, error)
                assert self._sinks is not None  # noqa: S101 - it is one of them
                self._sinks.remove(sink)

    def dump(self) -> None:
        """Write down what this rank does now; from any thread."""
        if self._placement is not None:
            self._write(self.flight.to_dict(self._placement))

    @contextmanager
    def dump_around(self) -> Iterator[None]:
        """Around what ends a wait: note where it waited, and write that down beside what follows.

        Once in a membership: later the rank is on its way out. A recovery waits for no disk.
        """
        if self._spoken or self._placement is None:
            yield
            return
        self._spoken = True
        noted = self.flight.to_dict(self._placement)
        yield
        threading.Thread(target=self._write, args=(noted,), name="last words", daemon=True).start()

    def close(self) -> None:
        """Leave everything on disk."""
        observe()
        self._close_sinks()
        if self.profiler is not None:
            self.profiler.close()

    @property
    def _observers(self) -> tuple[Observer, ...]:
        return (
            self.timer,
            self.flight,
            *([] if self.profiler is None else [self.profiler.ranges]),
        )

    def _write(self, dump: Mapping[str, Any]) -> None:
        if self.folder is None:
            return
        try:
            write_dump(dump, self.folder)
        except OSError as error:
            logger.warning("no record of what this rank did: %s", error)

    def _boundary(self, step: int) -> None:
        self.flight.step = step
        if self.profiler is not None and self._placement is not None:
            self.profiler.boundary(step, rank=self._placement.rank)

    def _close_sinks(self) -> None:
        for sink in self._sinks or []:
            sink.close()
        self._sinks = None


def metrics_folder(config: TrainerConfig, *, placement: Placement) -> Path | None:
    """Where figures, traces and dumps of a run go."""
    if config.metrics.folder is not None:
        return Path(config.metrics.folder)
    checkpoints = placement.checkpoint_folder
    return None if checkpoints is None else checkpoints / FOLDER
