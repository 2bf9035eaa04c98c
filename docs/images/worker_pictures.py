"""Pictures of docs/training.md whose ranks do not wait for each other in every step.

Run this file to draw them. The timelines are worked out by the rule that the servers have: step c
begins once the slowest has finished c - s.
"""

from __future__ import annotations

from collections.abc import Sequence

from rank_cards import LEFT, WHOLE, Parts, Picture, numbered, piece

Span = tuple[float, float]
LONG = 640
"""Pixels of a timeline."""
STEPS = ((3, 3, 3, 3, 3, 3), (3, 7, 3, 3, 3, 3), (3, 3, 3, 3, 3, 3), (3, 3, 3, 7, 3, 3))
"""What each rank's steps last: two of them are slow once."""
SYNCHRONOUS_LENGTH = 26


def parameter_server() -> None:
    """Four workers, two of them servers; what a bound on staleness is for."""
    picture = Picture()
    words = "ranks 0 and 2 serve a half each, in host memory; all four work"
    picture.heading("parameter-server, servers: 2", words)
    cards: list[dict[str, Parts]] = [
        {"W": WHOLE, "G": WHOLE, "O": piece(n // 2, 2) if n % 2 == 0 else (), "A": piece(n, 4)}
        for n in range(4)
    ]
    notes = ["server and worker", "worker"] * 2
    picture.cards(cards, names=numbered(4), notes=notes)
    picture.link(0, 3, "gradients to both servers, weights from both")
    picture.y += 36
    for mode, bound in (("synchronous", 0), ("asynchronous, max_staleness: 2", 2)):
        picture.heading(mode, "ranks 1 and 3 are slow once")
        for rank, steps in enumerate(spans(bound)):
            _row(picture, f"rank {rank}", steps, length=SYNCHRONOUS_LENGTH)
        picture.y += 8
    picture.write(
        "server",
        title="Parameter servers",
        told="Two of four ranks serve half of the weights and state each. Synchronous workers wait"
        " for the slowest in every step; asynchronous ones go on.",
    )


def spans(bound: int) -> list[list[Span]]:
    """By rank: when each step begins and ends."""
    found: list[list[Span]] = [[] for _ in STEPS]
    for step in range(len(STEPS[0])):
        last = step - bound - 1
        free = max(steps[last][1] for steps in found) if last >= 0 else 0
        begins = [max(free, steps[-1][1] if steps else 0) for steps in found]
        for rank, steps in enumerate(found):
            steps.append((begins[rank], begins[rank] + STEPS[rank][step]))
    return found


def diloco() -> None:
    """Two copies that meet after four steps."""
    picture = Picture()
    picture.heading("local_sgd.every_steps: 4, replicate: 2", "two copies, each over two ranks")
    cards: list[dict[str, Parts]] = [
        {kind: piece(n % 2, 2) for kind in "WGO"} | {"A": piece(n, 4)} for n in range(4)
    ]
    picture.cards(cards, names=numbered(4))
    for first in (0, 2):
        picture.link(first, first + 1, "gathers within a copy, in each step")
    picture.y += 28
    picture.link(0, 3, "every 4 steps: what each copy has moved, averaged")
    picture.y += 36
    picture.heading("time", "blue: a copy's own steps; green: the outer step of both")
    for copy, lasts in enumerate(((4, 3, 4, 3), (3, 4, 5, 4))):
        steps: list[Span] = []
        for meeting in (0, 18):
            begin = float(meeting)
            for seconds in lasts:
                steps.append((begin, begin + seconds))
                begin += seconds
        _row(picture, f"copy {copy}", steps, length=36, meetings=((16, 18), (34, 36)))
    picture.y += 4
    picture.write(
        "diloco",
        title="Local SGD and DiLoCo",
        told="Each copy makes four steps alone; then both go on from what they have in common.",
    )


def _row(
    picture: Picture,
    name: str,
    steps: Sequence[Span],
    *,
    length: float,
    meetings: Sequence[Span] = (),
) -> None:
    """A rank's steps by number, on a line of time."""
    unit = LONG / length
    picture.text("d", 14, picture.y + 12, name)
    picture.box("none", LEFT, picture.y, LONG, 15)
    for begin, end in meetings:
        picture.box("O", LEFT + begin * unit, picture.y, (end - begin) * unit - 1, 15)
    for number, (begin, end) in enumerate(steps):
        picture.box("F", LEFT + begin * unit, picture.y, (end - begin) * unit - 1, 15)
        middle = LEFT + (begin + end) / 2 * unit
        picture.text("n", middle, picture.y + 11, str(number))
    picture.y += 18


if __name__ == "__main__":
    parameter_server()
    diloco()
