"""Trouble injected into simulated gangs on GPUs, and what the leader makes of it.

`make test-all WHAT=hangs` runs a thousand of each kind and prints how often the verdict was right;
`test_hang_campaign.py` some of them every day.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from drumline_agent.leader.hang_detection import Hung, Moving, Stalled, detect_hang
from drumline_agent.protocol.member_reports import ProcessEvidence, RankView
from drumline_agent.rank_protocol.collective_progress import progress_of
from tests.unit.agent.leader.gpu_gang import GpuGang, Trouble, gpu_gang

PATIENCE = 2.0
SILENT = 30.0
"""Seconds: longer than a rank that computes is given."""
RIGHT = "right"


def troubled_gangs(trouble: Trouble, *, count: int, seed: int = 0) -> Iterator[GpuGang]:
    """Gangs in which this has happened, and nothing moves any more."""
    draw, made = random.Random(f"{trouble} {seed}"), 0
    while made < count:
        gang = gpu_gang(draw)
        if gang.inject(trouble, draw):
            gang.run()
            if any(len(rank.done) < len(rank.calls) for rank in gang.ranks):
                made += 1
                yield gang


def views_of(gang: GpuGang) -> list[RankView]:
    """What agents report: all processes wait in the same line, and burn their processors."""
    return [_view(gang, rank) for rank in range(len(gang.ranks))]


def _view(gang: GpuGang, rank: int) -> RankView:
    stopped = gang.trouble is Trouble.STOPPED and rank == gang.culprit
    known = progress_of(gang.dump(rank, timed=True), rank=rank, timed=True)
    moves = gang.trouble is Trouble.SLOW and rank == gang.culprit
    return RankView(
        rank=rank,
        position=(7, 0, 9),
        silent_seconds=PATIENCE / 2 if moves else SILENT,
        patience_seconds=PATIENCE,
        evidence=ProcessEvidence.STOPPED if stopped else ProcessEvidence.BUSY,
        progress=None if stopped else known,
    )


def verdict_on(gang: GpuGang) -> str:
    """`RIGHT`, or what was made of it."""
    verdict = detect_hang(views_of(gang))
    cause, ranks = gang.expected()
    match verdict:
        case Moving():
            right = gang.trouble is Trouble.SLOW
        case Hung(ranks=killed):
            right = gang.trouble is not Trouble.SLOW and set(killed) == ranks
        case Stalled(reason=reason):
            right = cause in ("link", "order") and _WORDS[cause] in reason
    return RIGHT if right else str(verdict)


_WORDS = {"link": "the network", "order": "in different orders"}


def campaign(*, count: int, seed: int = 0) -> dict[Trouble, Counter[str]]:
    """How often each verdict was made of each kind of trouble."""
    return {
        trouble: Counter(map(verdict_on, troubled_gangs(trouble, count=count, seed=seed)))
        for trouble in Trouble
    }


def main(arguments: Sequence[str]) -> int:
    """Print the rates; 1 if one is below 95 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    worst = 1.0
    for trouble, verdicts in campaign(count=options.count, seed=options.seed).items():
        rate = verdicts[RIGHT] / options.count
        worst = min(worst, rate)
        print(f"{rate:7.1%}  of {options.count}  {trouble}")
        for wrong, times in (verdicts - Counter({RIGHT: options.count})).most_common(3):
            print(f"{'':9}{times} x {wrong}")
    return 0 if worst >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
