"""Define how each side handles failures, notices and checkpoints.

No figure of the peer is worse than a published or measured one. If none is known, the peer has
Drumline's figure. A test checks both, and that Drumline's figures are in the pages that they name.
"""

from __future__ import annotations

from typing import Final

from drumline_simulator.parameters.model import Figure, Parameter, Source
from drumline_simulator.workload import Execution

# Anchors of pages in docs/. A test reads the rows there.
_RECOVERY: Final = "benchmarks.md#recovering"
_SIGKILL: Final = Source(
    text="measured, on processors",
    url=_RECOVERY,
    row="| SIGKILL of one rank of 4 in 2 pods → first new step, median | 1.01 s |",
)
_COLD: Final = Source(
    text="measured: a script whose processes all start again",
    url=_RECOVERY,
    row="| SIGKILL of one rank of 2 → next step, median of 5, cold | 3.5 s | | |",
)
_HANG: Final = Source(
    text="measured, detection and restart together",
    url=_RECOVERY,
    row="| a rank hangs → next step, median of 15 cells of the kill matrix | 13.54 s |",
)
_NODE: Final = Source(
    text="measured on processors, worst; on real kubelets a pod that moves took up to 10.6 s",
    url=_RECOVERY,
    row="| a node falls silent → next step, worst of 18 cells | 11.08 s, 6 steps lost |",
)
_PACE: Final = Source(
    text="set: the interval that loses least for a job of 64 GPUs at the rate of failures above,"
    " by Young; 40 steps, here of 10 s each",
    url="recovery.md#what-to-set",
    row="| `trainer.overrides.checkpoint.snapshot_every_steps` | as 3 % allow |",
)
_TAX: Final = Source(
    text="measured: 0.5 % with a snapshot every 3 or 4 steps, here one every 40",
    url=_RECOVERY,
    row="| training stands still for snapshots (one every 3 or 4 steps), as the trainer says"
    " itself | 0.5 % |",
)
# The published figure of a peer's best case is used for us too, where we measured none.
_GKE: Final = Source(
    text="Google's elastic training on 48 slices: 50 s to schedule anew, 5.4 s to restore, 12.7 s"
    " to the next step",
    url="https://developers.googleblog.com",
)
_NCCL: Final = Source(
    text="PyTorch's default timeout of NCCL",
    url="https://docs.pytorch.org/docs/stable/distributed.html",
)
_NVRX: Final = Source(
    text="NVIDIA Resiliency Extension, soft timeout of its in-process restart",
    url="https://nvidia.github.io/nvidia-resiliency-ext/",
)
_KUBELET: Final = Source(
    text="Kubernetes' grace of 40 s for a node that is silent, then as any restart",
    url="https://kubernetes.io/docs/concepts/architecture/nodes/",
)
_DCP: Final = Source(
    text="PyTorch's asynchronous checkpoints, 70B on 1,856 H200: training stops for 0.78 s; 67 s"
    " until the checkpoint is written",
    url="https://pytorch.org/blog/6x-faster-async-checkpointing/",
)
_HALF_HOUR: Final = Source(text="assumed; the same for both")
_TEN_MINUTES: Final = Source(text="assumed: three times as often as ours")
_RECOVERY_TIMEOUT: Final = Source(
    text="ours: startDeadlineSeconds",
    url="recovery.md#what-to-set",
    row="| `startDeadlineSeconds` | 600 |",
)
_READY: Final = Source(
    text="Kueue's default of waitForPodsReady.timeout, if that is on",
    url="https://kueue.sigs.k8s.io/docs/tasks/manage/setup_wait_for_pods_ready/",
)
_NONE: Final = Source(text="has none: torchrun and JobSet keep no state in memory")
_SIGTERM: Final = Source(
    text="torchrun hands SIGTERM on and a plain script ends; Kueue's issue 477 asks for more",
    url="https://github.com/kubernetes-sigs/kueue/issues/477",
)
_SAVES: Final = Source(text="a script that saves at SIGTERM, in as long a time as ours")

# One start time for all sides: it depends on images and NCCL, not on the scheduler.
START: Final = Parameter(
    means="a gang's start until its first step, images present",
    unit="s",
    ours=Figure(value=68.1, source=_GKE),
    peer=Figure(value=68.1, source=_GKE),
    best=Figure(value=68.1, source=_GKE),
)
PROCESS: Final = Parameter(
    means="a process ended: until the next step, on the same nodes",
    unit="s",
    ours=Figure(value=1.01, source=_SIGKILL),
    peer=Figure(value=3.5, source=_COLD),
    best=Figure(value=3.5, source=_COLD),
)
# Detection differs most: heartbeats of the trainer against a timeout of NCCL.
HANG: Final = Parameter(
    means="a process stands still: until that is noticed",
    unit="s",
    ours=Figure(value=13.54, source=_HANG),
    peer=Figure(value=600.0, source=_NCCL),
    best=Figure(value=60.0, source=_NVRX),
)
# The peer's figure adds the 40 s of the node controller to a start.
NODE: Final = Parameter(
    means="a node is lost: until the next step, another node at hand",
    unit="s",
    ours=Figure(value=11.08, source=_NODE),
    peer=Figure(value=108.1, source=_KUBELET),
    best=Figure(value=68.1, source=_GKE),
)
# The best peer saves three times as often, which costs it more stalls but less lost work.
CHECKPOINT: Final = Parameter(
    means="between checkpoints on storage",
    unit="s",
    ours=Figure(value=1800.0, source=_HALF_HOUR),
    peer=Figure(value=1800.0, source=_HALF_HOUR),
    best=Figure(value=600.0, source=_TEN_MINUTES),
)
STALL: Final = Parameter(
    means="training stops for a checkpoint",
    unit="s",
    ours=Figure(value=0.78, source=_DCP),
    peer=Figure(value=0.78, source=_DCP),
    best=Figure(value=0.78, source=_DCP),
)
# Young's interval: sqrt(2 x 0.175 s x 126 h) = 400 s. A snapshot stops training for 0.5 % of 35 s,
# and 64 GPUs of 8,090 GPU-hours each fail every 126 h. A value of 0 becomes None below.
SNAPSHOT: Final = Parameter(
    means="between snapshots in memory, 0: none",
    unit="s",
    ours=Figure(value=400.0, source=_PACE),
    peer=Figure(value=0.0, source=_NONE),
    best=Figure(value=0.0, source=_NONE),
)
SNAPSHOT_SHARE: Final = Parameter(
    means="training stops for snapshots",
    unit="of the time",
    ours=Figure(value=0.005 * 3.5 / 40, source=_TAX),
    peer=Figure(value=0.0, source=_NONE),
    best=Figure(value=0.0, source=_NONE),
)
# Same duration for both, because both write the same state to the same storage.
SAVE: Final = Parameter(
    means="a save after a notice, 0: it ends without one",
    unit="s",
    ours=Figure(value=67.0, source=_DCP),
    peer=Figure(value=0.0, source=_SIGTERM),
    best=Figure(value=67.0, source=_SAVES),
)
# Kueue's timeout is shorter. A shorter wait frees GPUs earlier, which favours the peer.
BROKEN: Final = Parameter(
    means="a gang without a spare node keeps the rest for",
    unit="s",
    ours=Figure(value=600.0, source=_RECOVERY_TIMEOUT),
    peer=Figure(value=300.0, source=_READY),
    best=Figure(value=300.0, source=_READY),
)
PARAMETERS: Final = (
    START,
    PROCESS,
    HANG,
    NODE,
    CHECKPOINT,
    STALL,
    SNAPSHOT,
    SNAPSHOT_SHARE,
    SAVE,
    BROKEN,
)


def ours(*, checkpoint_seconds: float | None = None) -> Execution:
    """Return the times of Drumline."""
    return _execution({each.means: each.ours.value for each in PARAMETERS}, checkpoint_seconds)


def peer(*, checkpoint_seconds: float | None = None) -> Execution:
    """Return the times of Kueue, JobSet and torchrun."""
    return _execution({each.means: each.peer.value for each in PARAMETERS}, checkpoint_seconds)


def best_peer(*, checkpoint_seconds: float | None = None) -> Execution:
    """Return the best-case times of Kueue, JobSet and torchrun."""
    return _execution({each.means: each.best.value for each in PARAMETERS}, checkpoint_seconds)


def _execution(values: dict[str, float], checkpoint_seconds: float | None) -> Execution:
    # Keys are the descriptions, so the report and the simulation cannot disagree.
    return Execution(
        save_seconds=values[SAVE.means],
        checkpoint_seconds=checkpoint_seconds or values[CHECKPOINT.means],
        restart_seconds=values[START.means],
        start_seconds=values[START.means],
        checkpoint_stall_seconds=values[STALL.means],
        # None disables snapshots. `Execution` rejects an interval of 0.
        snapshot_seconds=values[SNAPSHOT.means] or None,
        snapshot_share=values[SNAPSHOT_SHARE.means],
        process_seconds=values[PROCESS.means],
        hang_seconds=values[HANG.means],
        repair_seconds=values[NODE.means],
        broken_seconds=values[BROKEN.means],
    )
