"""The rewards of the answers that preferences are learned from. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """Means over the pairs of a global batch, before its update.

    An answer's reward is how much likelier than to the reference it has become, in logarithms and
    times beta. Both may fall while the chosen answer gains on the other.
    """

    chosen: float
    rejected: float
    accuracy: float
    """The share of the pairs whose chosen answer has the larger one."""

    @classmethod
    def of(cls, means: Sequence[float]) -> Rewards:
        """From `models.preferences.reward_sums` of all ranks by the pairs."""
        chosen, rejected, ahead = means
        return cls(chosen=chosen, rejected=rejected, accuracy=ahead)

    @property
    def margin(self) -> float:
        """What the chosen answer is ahead by."""
        return self.chosen - self.rejected

    def scalars(self) -> Iterator[tuple[str, float]]:
        """By the names that TRL's trainer gives them."""
        yield "rewards/chosen", self.chosen
        yield "rewards/rejected", self.rejected
        yield "rewards/margins", self.margin
        yield "rewards/accuracies", self.accuracy
