"""Parts of a whole that are joined in rounds, and joined again when some of them change. Pure.

A join takes two parts and gives what they make up together. Joins commute and associate, so each
part may keep its place. Then a changed part changes one join in each round: O(log parts).

Example: parts a, b, c and d. The first round has ab and cd, the second one abcd. When b changes, ab
and abcd are joined again, and cd stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

Part = TypeVar("Part", bound=tuple[int, ...])


class Tournament(Generic[Part]):
    """The rounds of one whole.

    Args:
        parts: its parts. Equal ones have places next to each other, so equal pairs are frequent.
    """

    __slots__ = ("_order", "_rounds")

    def __init__(self, parts: Sequence[Part]) -> None:
        self._order = sorted(range(len(parts)), key=parts.__getitem__)
        """The number of the part in each place."""
        self._rounds: list[list[Part | None]] = [[None] * len(parts)]
        while len(self._rounds[-1]) > 1:
            self._rounds.append([None] * (-(-len(self._rounds[-1]) // 2)))

    def copy(self) -> Tournament[Part]:
        """Return a tournament of the same parts with joins of its own."""
        other = Tournament[Part](())
        other._order, other._rounds = self._order, list(map(list, self._rounds))
        return other

    @property
    def whole(self) -> Part | None:
        """All parts together; None without parts."""
        return self._rounds[-1][0] if self._order else None

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self._rounds) - 1

    def renew(self, parts: Sequence[Part]) -> list[int]:
        """Take the parts as they are now, and return the places of those that changed."""
        first = self._rounds[0]
        changed = [
            place for place, number in enumerate(self._order) if first[place] is not parts[number]
        ]
        for place in changed:
            first[place] = parts[self._order[place]]
        return changed

    def pairs(self, number: int, changed: Collection[int]) -> Iterator[tuple[int, Part, Part]]:
        """Yield the places of a round that change, each with the two parts that are joined there.

        Args:
            number: the round, from 0.
            changed: places that changed before the round.
        """
        before = self._rounds[number]
        for place in {place // 2 for place in changed}:
            if 2 * place + 1 < len(before):  # the last one of an odd number has no neighbour
                left, right = before[2 * place], before[2 * place + 1]
                if left is not None and right is not None:
                    yield place, left, right

    def write(
        self, number: int, changed: Collection[int], *, joined: Mapping[int, Part]
    ) -> list[int]:
        """Write the places of a round that change, and return those with another value.

        Args:
            number: the round, from 0.
            changed: places that changed before the round.
            joined: the value of each place that has two parts.
        """
        before, after = self._rounds[number], self._rounds[number + 1]
        different: list[int] = []
        for place in {place // 2 for place in changed}:
            # The last one of an odd number has no neighbour.
            value = joined.get(place, before[2 * place])
            if after[place] is not value:
                after[place] = value
                different.append(place)
        return different


def play_again(
    tournaments: Sequence[Tournament[Part]],
    *,
    parts_of: Sequence[Sequence[Part]],
    join: Callable[[Collection[tuple[Part, Part]]], Mapping[tuple[Part, Part], Part]],
) -> list[Part | None]:
    """Return the wholes of tournaments whose parts may have changed; None for one without parts.

    Args:
        tournaments: the tournaments.
        parts_of: the parts of each.
        join: returns what pairs make up, all of one round at once.
    """
    changed = [each.renew(parts) for each, parts in zip(tournaments, parts_of, strict=True)]
    for number in range(max((each.rounds for each in tournaments), default=0)):
        plays = [
            (i, each, list(each.pairs(number, changed[i])))
            for i, each in enumerate(tournaments)
            if changed[i] and number < each.rounds
        ]
        # Most equal parts are one object, and a part may have thousands of numbers to hash.
        distinct = {
            (id(left), id(right)): (left, right) for *_, pairs in plays for _, left, right in pairs
        }
        joins = join(list(dict.fromkeys(distinct.values())))
        by_identity = {key: joins[pair] for key, pair in distinct.items()}
        for i, each, pairs in plays:
            joined = {place: by_identity[id(left), id(right)] for place, left, right in pairs}
            changed[i] = each.write(number, changed[i], joined=joined)
    return [each.whole for each in tournaments]
