"""The pod's Prometheus metrics, in the text format, version 0.0.4.

Labels for namespace, pod and job come from the scrape configuration, not from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drumline_trainer.agent.board import Board

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(board: Board) -> bytes:
    """All metrics of one pod; a gauge whose value is not known yet is left out."""
    progress = board.progress
    lines = [
        *_gauge("generation", "Generation of the ranks' membership.", board.generation),
        *_gauge("attempt", "Restart in place within the generation.", board.attempt),
        *_gauge("step", "Finished optimizer steps.", progress.step),
        *_gauge("total_steps", "Optimizer steps of the whole run.", progress.total_steps),
        *_gauge("loss", "Training loss, mean over the global batch.", progress.loss),
        *_gauge("tokens_per_second", "Over all ranks of the job.", progress.tokens_per_second),
        *_gauge(
            "checkpoint_step", "Step of the newest committed checkpoint.", progress.checkpoint_step
        ),
        "# HELP drumline_trainer_rank_up Whether the rank's process runs.",
        "# TYPE drumline_trainer_rank_up gauge",
        *(
            f'drumline_trainer_rank_up{{rank="{rank}"}} {int(up)}'
            for rank, up in sorted(board.ranks_up.items())
        ),
    ]
    return ("\n".join(lines) + "\n").encode()


def _gauge(name: str, text: str, value: float | None) -> list[str]:
    if value is None:
        return []
    full = f"drumline_trainer_{name}"
    return [f"# HELP {full} {text}", f"# TYPE {full} gauge", f"{full} {value!r}"]
