"""The program of one rank: join the other ranks, train, end with an exit code of the contract.

It runs in a child forked from a process that has imported torch and done nothing else with it: the
process group, CUDA and compute threads are all initialized here.

The rendezvous store lives in another process (`serve_store`), so no rank's death takes it away.

With an agent (`Control`) a rank outlives its peers: it leaves the broken gang, reports `Quiesced`
and continues in the same process under the placement it gets then. Without an agent it ends.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.control import Control
from drumline_agent.rank_protocol.messages import CollectivesReported, Quiesced, RankMessage
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import ExitCode
from drumline_contract.buckets.apart import waits_reported
from drumline_contract.buckets.failures import StoreError
from drumline_contract.config import Compile, LogRanks, TrainerConfig
from drumline_contract.shapes.flops import peak_flops
from drumline_trainer.checkpoint.errors import CheckpointError
from drumline_trainer.compiled_kernels.kept_kernels import KeptKernels, NothingCompiled
from drumline_trainer.compiled_kernels.machine_folder import machine_folder
from drumline_trainer.host.cpus import bind_near_gpu, threads_per_rank
from drumline_trainer.metrics.heartbeat_sender import HeartbeatSender
from drumline_trainer.metrics.instruments import Instruments
from drumline_trainer.metrics.losses import LOSSES_FILE
from drumline_trainer.metrics.reporter import RunReporter
from drumline_trainer.metrics.sinks import Console
from drumline_trainer.preflight import environment_facts, groups_of
from drumline_trainer.profiling.nccl_progress import forget_collectives, nccl_progress
from drumline_trainer.rank.exit_codes import exit_code_of
from drumline_trainer.rank.planned_run import planned_run
from drumline_trainer.recovery.abort import PATIENCE_SECONDS, abort_collectives, leave_membership
from drumline_trainer.recovery.rendezvous import backend_of, join
from drumline_trainer.recovery.tiered_checkpointer import TieredCheckpointer
from drumline_trainer.sharding.device import device_of_rank
from drumline_trainer.sharding.gpus import identity_of
from drumline_trainer.train import NonFiniteLossError, train

HANDLING = {
    # torch asks for 0 where communicators are aborted: distributed_c10d._abort_process_group
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    # it still writes its records; agents notice hangs, and know whose they are
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""Values by variable. ProcessGroupNCCL.hpp documents them."""


def leave_faults_to_the_agent() -> None:
    """Keep torch's NCCL watchdog from ending the process. Call this before a group is made.

    The watchdog's threads check operations beside the training thread. By default they end the
    process in three cases: a peer is lost or an operation is late, CUDA returns an error, or a
    thread of the watchdog is stuck for eight minutes. So survivors would die with the lost rank,
    and a broken GPU would look like a SIGABRT of the program. The training thread gets CUDA's
    error itself.
    """
    for name, value in HANDLING.items():
        os.environ.setdefault(name, value)


def choose_kernels(*, deterministic: bool) -> None:
    """Settle it for this process, before it has used its device.

    Deterministic: a resumed run equals an undisturbed one bitwise. It costs the flash kernel's
    faster backward pass, cuDNN's attention and the benchmark of convolutions.
    """
    if not deterministic:
        return
    # cuBLAS reads it when it makes its first handle. With a fixed workspace it chooses the same
    # algorithms each time.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # not `use_deterministic_algorithms`, which imports torch's compiler to tell it this:
    os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")
    # "error" and not "warn": an operation without a deterministic kernel must end the run, not
    # change its bits.
    torch.set_deterministic_debug_mode("error")
    # every tensor we make is filled anyway
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue] - missing in torch's stubs


logger = logging.getLogger(__name__)

_SAY_WHAT_TO_DO = (CheckpointError, StoreError, NonFiniteLossError)
"""Errors that no place in the code explains better than their message."""


def run_rank(
    *,
    config: TrainerConfig,
    placement: Placement,
    heartbeat: Callable[[RankMessage], None] | None = None,
    control: Control | None = None,
    losses_file: Path | None = None,
    write: Callable[[str], None] | None = None,
) -> None:
    """Train as this rank until the end.

    Args:
        config: the same for all ranks.
        placement: which rank this is and where the store answers.
        heartbeat: receives all messages of the rank; must not block.
        control: orders of the agent; None where there is no agent.
        losses_file: where rank 0 writes every step's loss; by default beside the checkpoints.
        write: receives progress lines on rank 0; standard output by default.

    Raises:
        Any error that ended the run; `exit_code_of` gives its exit code.
    """
    # Phase 1: process-wide settings, before torch starts threads or uses the device.
    torch.set_num_threads(threads_per_rank(placement.local_world_size))
    choose_kernels(deterministic=config.deterministic)
    device = _device(placement)
    # By default the losses lie beside the checkpoints, which all memberships of a run share.
    if losses_file is None and placement.checkpoint_folder is not None:
        losses_file = placement.checkpoint_folder / LOSSES_FILE
    # Phase 2: reporting. It outlives memberships, so it is made once.
    instruments = Instruments.open(config, placement=placement, device=device)
    console = _console(config, placement=placement, tagged=control is None)
    reporter = RunReporter(
        config=config,
        placement=placement,
        heartbeats=_heartbeats(heartbeat, config),
        write=write or console.line,
        show=write or console.progress,
        losses_file=losses_file,
        peak_flops=_peak_flops(device),
        instruments=instruments,
    )
    compiled = None if config.compile is Compile.NONE else machine_folder(device=device.type)
    gc.freeze()  # 300,000 objects of imported modules: collecting takes longer than joining
    # Phase 3, without an agent: one membership, and every error ends the process.
    if control is None:
        try:
            _train(config, reporter=reporter, device=device, compiled=compiled)
        finally:
            instruments.close()
            console.close()
        return

    # Phase 3, with an agent: one membership after the other in this process.
    _abort_when_ordered(control, instruments=instruments)
    control.on_report = lambda: _report_collectives(reporter)
    # Each round is one membership. It returns None at the end of the run.
    while parked := _train_until_parked(
        config, reporter=reporter, device=device, compiled=compiled, control=control
    ):
        # The groups go before the message: the agent may start the next membership as soon as it
        # arrives.
        leave_membership(device)
        # torch's flight recorder would otherwise mix collectives of two memberships.
        forget_collectives()
        reporter.send_event(parked)
        # Blocks until the agent gives a placement, which may be a smaller or larger gang.
        reporter.rejoin(control.wait_for_placement())
    instruments.close()


def _heartbeats(
    heartbeat: Callable[[RankMessage], None] | None, config: TrainerConfig
) -> HeartbeatSender | None:
    if heartbeat is None:
        return None
    return HeartbeatSender(heartbeat, seconds=config.heartbeat_seconds)


def _device(placement: Placement) -> torch.device:
    """Return this rank's device, and bind the process to the processors near it."""
    device = device_of_rank(placement.local_rank, of=placement.local_world_size)
    # Memory is allocated on the NUMA node of the first use, so the process is bound before it
    # allocates.
    bind_near_gpu(identity_of(device))
    return device


def _abort_when_ordered(control: Control, *, instruments: Instruments) -> None:
    """Abort collectives only when the agent ends a membership."""

    def break_off(late: float) -> None:
        # A dump around the abort keeps the evidence of a hang, which the abort destroys.
        with instruments.dump_around():
            abort_collectives(force=late >= PATIENCE_SECONDS)

    control.on_interrupt = break_off
    leave_faults_to_the_agent()


def _report_collectives(reporter: RunReporter) -> None:
    # The callback runs on the thread that reads orders. It must not wait for the driver.
    """Send the agent how far this rank is, in a thread: where the driver hangs it does not end."""
    placement = reporter.placement

    def report() -> None:
        try:
            progress = nccl_progress(placement.rank)
        # The format belongs to torch and changes between versions. A report is a hint, so it is
        # left out.
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("torch's flight recorder cannot be read: %s", error)
            return
        if progress is not None:
            generation, attempt = placement.membership
            reporter.send_event(
                CollectivesReported(generation=generation, attempt=attempt, progress=progress)
            )

    threading.Thread(target=report, name="collectives", daemon=True).start()


def _train_until_parked(
    config: TrainerConfig,
    *,
    reporter: RunReporter,
    device: torch.device,
    compiled: Path | None,
    control: Control,
) -> Quiesced | None:
    """Train to the end of the run (None) or of the gang. All other errors are raised.

    Once the agent has ended the membership every error counts as its end: an abort from another
    thread leaves torch's registries empty under whatever the training thread was doing.
    """
    placement = reporter.placement
    try:
        _train(config, reporter=reporter, device=device, compiled=compiled, control=control)
    except Exception as error:
        # A user error or a broken device ends the process: a new membership would meet it again.
        if not _parks(error, control=control):
            raise
        return Quiesced(
            generation=placement.generation,
            attempt=placement.attempt,
            step=reporter.figures.step,
            # One line of at most 256 characters: the whole message belongs into the log.
            reason=f"{type(error).__name__}: {error}".partition("\n")[0][:256],
        )
    return None


def _parks(error: Exception, *, control: Control) -> bool:
    """Return whether a rank waits for the next membership. With a failed device it cannot."""
    # CUDA keeps an error until the process ends.
    if isinstance(error, torch.AcceleratorError):
        return False
    # A peer's loss counts even before the agent notices it.
    return control.leave_ordered or exit_code_of(error) is ExitCode.PEER_LOST


def _train(
    config: TrainerConfig,
    *,
    reporter: RunReporter,
    device: torch.device,
    compiled: Path | None,
    control: Control | None = None,
) -> None:
    """Train for one membership, from joining to the end of the run.

    Args:
        config: configuration of the run.
        reporter: reporter of this rank.
        device: device of this rank.
        compiled: where this machine's ranks compile; None: they do not.
        control: orders of the agent, if there is one.
    """
    placement = reporter.placement
    # Phase 1: enter the membership. From here on an order to leave it interrupts waits.
    if control is not None:
        control.enter(placement.membership)
    # Phase 2: plan. It depends on the number of ranks, so it is made anew for each membership.
    planned = planned_run(config, placement=placement, device=device)
    config, layout = planned.config, planned.layout
    reporter.plan(
        planned.summary, seconds=planned.seconds, parts=planned.parts, reasons=planned.reasons
    )
    # Phase 3: join. All ranks compare their facts here, before the first collective.
    join(
        placement,
        device=device,
        check=lambda: control.check() if control is not None else None,
        facts=environment_facts(config.to_dict(), layout, backend=backend_of(device)),
        groups=groups_of(layout, placement.rank),
    )
    # Phase 4: kernels of earlier runs, before the first layer is compiled.
    kernels = NothingCompiled()
    if compiled is not None:
        kernels = KeptKernels.open(
            config,
            layout,
            placement=placement,
            device=device,
            report=reporter.print_line,
            above=compiled,
        )
    # Phase 5: train. The context completes a pending snapshot also after an error. Ranks that still
    # fetch files report it, because the others wait for them.
    with (
        TieredCheckpointer(
            config=config,
            placement=reporter.placement,
            device=device,
            reporter=reporter,
            control=control,
        ) as checkpointer,
        waits_reported(checkpointer.progressed),
    ):
        train(
            config,
            device=device,
            reporter=reporter,
            checkpointer=checkpointer,
            after_step=kernels.step_done,
        )
    # Only a run that ended without an error destroys the group here. Otherwise `leave_membership`
    # does it, or the process ends.
    kernels.finish()
    dist.destroy_process_group()


def rank_main(
    config: TrainerConfig, *, placement: Placement, losses_file: Path | None = None
) -> ExitCode:
    """Run `run_rank` as a whole process: errors are logged and mapped to an exit code.

    Every log line has the rank's number. Lines below warnings are only printed by the ranks that
    `metrics.log_ranks` selects.

    Args:
        config: configuration of the run.
        placement: rank and pod of this process.
        losses_file: file for the losses of all steps. None: none.
    """
    # Rank 0 prints for all. Warnings are printed by every rank, because they differ.
    prints = placement.rank == 0 or config.metrics.log_ranks is LogRanks.ALL
    logging.basicConfig(format=f"[rank {placement.rank}] %(message)s")
    for package in ("drumline_trainer", "drumline_contract"):
        logging.getLogger(package).setLevel(logging.INFO if prints else logging.WARNING)
    try:
        run_rank(config=config, placement=placement, losses_file=losses_file)
    except Exception as error:  # the process boundary
        code = exit_code_of(error)
        # A stack trace helps only with unexpected errors. Expected ones say in one sentence what to
        # do.
        if code is ExitCode.APPLICATION and not isinstance(error, _SAY_WHAT_TO_DO):
            logger.exception("failed")
        else:
            logger.error("%s", error)  # noqa: TRY400 - one line says it
        return code
    return ExitCode.OK


def _peak_flops(device: torch.device) -> float | None:
    return peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def _console(config: TrainerConfig, *, placement: Placement, tagged: bool) -> Console:
    """Return standard output. With an agent, the agent tags the lines of its ranks."""
    tagged = tagged and config.metrics.log_ranks is LogRanks.ALL
    return Console(sys.stdout, prefix=f"[rank {placement.rank}] " if tagged else "")
