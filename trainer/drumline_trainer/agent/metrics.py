"""The pod's Prometheus metrics, in the text format, version 0.0.4.

Labels for namespace, pod and job come from the scrape configuration, not from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drumline_trainer.agent.board import Board
    from drumline_trainer.heartbeat import Heartbeat

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MFU_HELP = (
    "Model FLOP utilization: tokens/s per GPU x (6 x weights in matrix products"
    " + 6 x layers x hidden size x sequence length) / dense bf16 peak FLOP/s of the GPU."
)


def render(board: Board) -> bytes:
    """All metrics of one pod; a gauge whose value is not known yet is left out."""
    lines = [
        *_gauge("generation", "Generation of the ranks' membership.", board.generation),
        *_gauge("attempt", "Restart in place within the generation.", board.attempt),
        *([] if board.heartbeat is None else _training(board.heartbeat)),
        "# HELP drumline_trainer_rank_up Whether the rank's process runs.",
        "# TYPE drumline_trainer_rank_up gauge",
        *(
            f'drumline_trainer_rank_up{{rank="{rank}"}} {int(up)}'
            for rank, up in sorted(board.ranks_up.items())
        ),
    ]
    return ("\n".join(lines) + "\n").encode()


def _training(newest: Heartbeat) -> list[str]:
    return [
        *_gauge("step", "Finished optimizer steps.", newest.step),
        *_gauge("total_steps", "Optimizer steps of the whole run.", newest.total_steps),
        *_gauge("loss", "Training loss, mean over the global batch.", newest.loss),
        *_gauge("tokens_per_second", "Over all ranks of the job.", newest.tokens_per_second),
        *_gauge("step_seconds", "Mean step time, checkpoints excluded.", newest.step_seconds),
        *_gauge("mfu_ratio", MFU_HELP, newest.mfu),
        *_gauge("checkpoint_step", "Newest committed checkpoint.", newest.checkpoint_step),
        *_gauge(
            "checkpoint_seconds",
            "How long training stood still for the newest checkpoint.",
            newest.checkpoint_seconds,
        ),
    ]


def _gauge(name: str, text: str, value: float | None) -> list[str]:
    if value is None:
        return []
    full = f"drumline_trainer_{name}"
    return [f"# HELP {full} {text}", f"# TYPE {full} gauge", f"{full} {value!r}"]
