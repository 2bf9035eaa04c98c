"""The instruments of one rank: step timer, memory meter, flight recorder, profiler, sinks.

Nothing here is collective and nothing here can end a run: write errors are logged.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from drumline_agent.rank_protocol.heartbeat import Phase
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_contract.layout import Axis, Layout
from drumline_contract.step_figures.step_record import StepRecord
from drumline_trainer.metrics.cuda_clock import CudaClock
from drumline_trainer.metrics.evaluation_record import EvaluationRecord
from drumline_trainer.metrics.memory import MemoryMeter, MemoryUsage
from drumline_trainer.metrics.sinks import Sink, check_packages, open_sinks
from drumline_trainer.metrics.step_timer import OTHER, Observer, StepTimer, observe, per_step
from drumline_trainer.preflight import groups_of
from drumline_trainer.profiling.flight_recorder import (
    FlightRecorder,
    dump_on_signal,
    set_recorder_defaults,
    write_dump,
)
from drumline_trainer.profiling.profiler import Profiler

FOLDER = "metrics"
"""In the checkpoint folder."""
_WARM_UP_WINDOWS = 5
"""Logged steps before the first diagnosis."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Instruments:
    """Instruments of one rank process, over all its memberships.

    The defaults only measure times.
    """

    timer: StepTimer = field(default_factory=StepTimer)
    flight: FlightRecorder = field(default_factory=FlightRecorder)
    memory: MemoryMeter = field(default_factory=lambda: MemoryMeter(device=torch.device("cpu")))
    profiler: Profiler | None = None
    folder: Path | None = None
    """For metrics, traces and dumps; None: none are written."""
    config: TrainerConfig | None = None
    """Configures the sinks; None: there are none."""
    totals: Counter[str] = field(default_factory=Counter[str])
    """Seconds by part, without the first window, which warms up."""
    _sinks: list[Sink] | None = None
    _placement: Placement | None = None
    _windows: int = 0
    _dumped: bool = False

    @classmethod
    def open(
        cls, config: TrainerConfig, *, placement: Placement, device: torch.device
    ) -> Instruments:
        """Make the configured instruments the observers of this process.

        Args:
            config: configuration of the run.
            placement: rank and pod of this process.
            device: device of the rank.

        Raises:
            ConfigError: a package or a folder is missing.
        """
        # Phase 1: checks that can fail come first, before any observer is installed.
        check_packages(config)
        folder = metrics_folder(config, placement=placement)
        on_gpu = device.type == "cuda"
        # NCCL reads its flight recorder variables when the first group is made, so set them before.
        if on_gpu:
            set_recorder_defaults(folder)
        # Phase 2: CUDA events measure the device. The host's clock only measures kernel launches.
        made = cls(
            timer=StepTimer(CudaClock()) if on_gpu else StepTimer(),
            memory=MemoryMeter(device=device),
            folder=folder,
            config=config,
            profiler=Profiler(
                config.profile, device=device, folder=folder, look_every=config.log_every_steps
            ),
        )
        # Phase 3: install the observers last, when every instrument is complete.
        made.rejoin(placement)
        observe(*made._observers)
        dump_on_signal(made.dump)
        return made

    def rejoin(self, placement: Placement) -> None:
        """Begin another membership; the rank that is now 0 writes the metrics."""
        self._placement, self._dumped = placement, False
        self.flight.restart()
        # Only one rank may append to the files. The rank that loses number 0 closes them.
        if placement.rank != 0:
            self._close_sinks()
        elif self._sinks is None and self.config is not None:
            self._sinks = open_sinks(self.config, folder=self.folder)

    def set_groups(self, layout: Layout, *, rank: int) -> None:
        """Set the groups of this rank in this membership, for the flight record."""
        pipeline = layout.group_of(Axis.PIPELINE, rank)
        # The first and the last stage of a pipeline share the gradient of a tied embedding.
        ends = {"tied": [pipeline[0], pipeline[-1]]} if len(pipeline) > 1 else {}
        self.flight.peers = groups_of(layout, rank) | ends

    def begin(self, step: int) -> None:
        """Begin to measure after `step` finished steps."""
        self.timer.restart()
        self._boundary(step)

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        for observer in self._observers:
            observer.enter(phase)
        self.memory.enter(phase)

    def finish_step(self, step: int) -> None:
        """End a step."""
        for observer in self._observers:
            # Time between two steps counts as `other`, until the next phase begins.
            observer.enter(OTHER)
        self._boundary(step)

    @property
    def warmed_up(self) -> bool:
        """True if `totals` cover enough steps for a diagnosis."""
        return self._windows >= _WARM_UP_WINDOWS and any(self.totals.values())

    @property
    def writes_metrics(self) -> bool:
        """True if this rank writes metrics."""
        return bool(self._sinks)

    def collect(self, *, steps: int) -> tuple[dict[str, float], MemoryUsage]:
        """Return mean seconds of a step by part since the last call, and the memory usage."""
        seconds = self.timer.take()
        self._windows += 1
        # The first window includes compilation, autotuning and first allocations. Drop it.
        if self._windows == 2:
            self.totals.clear()
        self.totals.update(seconds)
        return per_step(seconds, steps=steps), self.memory.take()

    def publish(self, record: StepRecord | EvaluationRecord) -> None:
        """Write a record to the sinks; a sink that fails is logged and removed."""
        sinks = self._sinks or []
        # The copy allows removal during the loop.
        for sink in list(sinks):
            try:
                sink.write(record)
            except Exception as error:  # noqa: BLE001 - metrics must not end a run
                logger.warning("%s takes no more figures: %s", type(sink).__name__, error)
                sinks.remove(sink)

    def dump(self) -> None:
        """Write the flight record; from any thread."""
        if self._placement is not None:
            self._write(self.flight.to_dict(self._placement))

    @contextmanager
    def dump_around(self) -> Generator[None]:
        """Wrap the abort of collectives: take a flight record before, write it in a thread after.

        Only once in a membership. The disk is written in a thread, so a recovery does not wait.
        """
        if self._dumped or self._placement is None:
            yield
            return
        self._dumped = True
        # Take the record before the abort, because the abort ends the parts that hang.
        record = self.flight.to_dict(self._placement)
        yield
        # A daemon thread does not keep the process alive if the disk hangs.
        threading.Thread(
            target=self._write, args=(record,), name="flight record", daemon=True
        ).start()

    def close(self) -> None:
        """Flush and close everything."""
        # Remove the observers first, so that no later event reaches a closed sink.
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
    """Return the folder for metrics, traces and dumps of a run. None: it has none."""
    if config.metrics.folder is not None:
        return Path(config.metrics.folder)
    checkpoints = placement.checkpoint_folder
    return None if checkpoints is None else checkpoints / FOLDER
