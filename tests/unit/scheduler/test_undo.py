"""The search for the candidates that must go, beside one that tries them one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from drumline_scheduler.undo import CutShortError, Undo, minimal_subset


class Scales:
    """Candidates with weights in two resources; there is room once enough of both is gone."""

    def __init__(self, weights: list[tuple[int, int]], needed: tuple[int, int]) -> None:
        self.weights, self.needed = weights, needed
        self.gone = set[int]()
        self.questions = 0

    def candidates(self) -> Iterator[int]:
        for candidate in range(len(self.weights)):
            assert len(self.gone) == candidate, "each is read after the others were removed"
            yield candidate

    def remove(self, candidate: int) -> Undo:
        assert candidate not in self.gone
        self.gone.add(candidate)
        return lambda: self.gone.remove(candidate)

    def fits(self) -> bool:
        self.questions += 1
        return all(
            sum(self.weights[each][axis] for each in self.gone) >= self.needed[axis]
            for axis in range(2)
        )

    def search(self, *, in_runs: bool = True) -> list[int]:
        necessary = minimal_subset(
            candidates=self.candidates(), remove=self.remove, fits=self.fits, in_runs=in_runs
        )
        assert not self.gone, "everything is undone"
        return necessary


def one_by_one(count: int, fits: Callable[[set[int]], bool]) -> list[int]:
    """Remove candidates until there is room, then put back each that is not necessary."""
    gone = list[int]()
    for candidate in range(count):
        gone.append(candidate)
        if fits(set(gone)):
            break
    else:
        return gone
    for candidate in reversed(gone.copy()):
        if fits(set(gone) - {candidate}):
            gone.remove(candidate)
    return gone


@pytest.mark.parametrize("seed", range(200))
def test_the_candidates_are_those_of_a_search_one_by_one(seed: int) -> None:
    random = Random(seed)
    count = random.randrange(14)
    weights = [(random.randrange(4), random.randrange(4)) for _ in range(count)]
    scales = Scales(weights, (random.randrange(12), random.randrange(12)))

    def fits(gone: set[int]) -> bool:
        scales.gone = gone
        enough = scales.fits()
        scales.gone = set()
        return enough

    assert scales.search(in_runs=seed % 2 == 0) == one_by_one(count, fits)


@pytest.mark.parametrize("seed", range(60))
def test_everything_is_undone_after_an_exception(seed: int) -> None:
    random = Random(seed)
    weights = [(random.randrange(4), random.randrange(4)) for _ in range(random.randrange(2, 14))]
    scales = Scales(weights, (random.randrange(9), random.randrange(9)))
    scales.search(in_runs=seed % 2 == 0)
    questions, scales.questions = scales.questions, 0
    last = random.randrange(questions)

    def fits() -> bool:
        if scales.questions == last:
            raise CutShortError
        return Scales.fits(scales)

    scales.fits = fits  # type: ignore[method-assign]
    with pytest.raises(CutShortError):
        scales.search(in_runs=seed % 2 == 0)
    assert not scales.gone


def test_few_questions_are_asked_for_few_of_many_candidates() -> None:
    weights = [(0, 0)] * 50 + [(5, 5)] + [(0, 0)] * 77
    scales = Scales(weights, (5, 5))
    assert scales.search() == [50]
    assert scales.questions <= 30
    scales = Scales(weights, (6, 6))
    assert len(scales.search()) == 128
    assert scales.questions <= 8


def test_no_candidate_is_read_without_need_one_by_one() -> None:
    scales = Scales([(1, 1)] * 3, (1, 1))
    read = iter(range(3))
    assert minimal_subset(candidates=read, remove=scales.remove, fits=scales.fits) == [0]
    assert list(read) == [1, 2]
