"""How long a rank may send no heartbeat before its silence is unusual; pure."""

from __future__ import annotations

from drumline_trainer.rank_protocol.heartbeat import Heartbeat, Phase

LEAST_PATIENCE_SECONDS = 2.0
STEPS_OF_PATIENCE = 4
LONG_PATIENCE_SECONDS = 30.0
"""For starting, restoring, compiling, writing: phases that take long now and then."""
LONG_FACTOR = 10
_LONG_PHASES = (
    *(Phase.STARTING, Phase.RESTORING, Phase.EVALUATION),
    *(Phase.SNAPSHOT, Phase.CHECKPOINT),
)


def patience_seconds(newest: Heartbeat | None, *, step_seconds: float | None) -> float:
    """How long a rank may be silent after this heartbeat.

    Args:
        newest: the rank's newest heartbeat.
        step_seconds: usual time of a step; None where none was measured.
    """
    if newest is None or step_seconds is None or newest.phase in _LONG_PHASES:
        return max(LONG_PATIENCE_SECONDS, LONG_FACTOR * (step_seconds or 0.0))
    return max(LEAST_PATIENCE_SECONDS, STEPS_OF_PATIENCE * step_seconds)
