"""The section `model.routing`: which experts a token gets, and with which shares."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drumline_contract.config.bounds import Width
from drumline_contract.config.errors import ConfigError, require_not_negative, require_positive


class RouterScores(StrEnum):
    """Function that turns a router's logits into scores."""

    SOFTMAX = "softmax"
    """Shares of all experts. Of a group its best expert counts: DeepSeek-V2's."""
    SIGMOID = "sigmoid"
    """A score of each expert alone. To choose, a correction of each expert is added, which does not
    learn, and of a group its best two count: DeepSeek-V3's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Routing of tokens to experts, in every mixture of the model."""

    scores: RouterScores = RouterScores.SOFTMAX
    groups: Width = 1
    """Number of groups of neighbouring experts."""
    groups_per_token: Width = 1
    """Number of best groups that a token's experts are chosen from."""
    normalized: bool = True
    """Shares of a token's experts are divided by their sum."""
    scale: float = 1.0
    """Then they are multiplied by it."""
    correction_rate: float = 0.0
    """With sigmoid: change of an expert's correction after each step. It rises for experts with
    fewer tokens than the mean and falls for experts with more (DeepSeek-V3, 2.1.2: 0.001). 0:
    fixed."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "model.routing.groups": self.groups,
                "model.routing.groups_per_token": self.groups_per_token,
                "model.routing.scale": self.scale,
            }
        )
        require_not_negative({"model.routing.correction_rate": self.correction_rate})
        if self.correction_rate and self.scores is not RouterScores.SIGMOID:
            raise ConfigError(
                "model.routing.correction_rate: softmax has no corrections; leave it out"
            )
        if self.groups_per_token > self.groups:
            raise ConfigError(
                f"model.routing.groups_per_token: {self.groups_per_token} are more than the"
                f" {self.groups} groups"
            )

    def check_experts(self, *, experts: int, per_token: int) -> None:
        """Check the routing against the number of experts.

        Raises:
            ConfigError: the groups do not divide the experts, or are too small for a token's
                experts.
        """
        if experts % self.groups:
            raise ConfigError(
                f"model.routing.groups: {experts} experts do not divide by {self.groups}"
            )
        size = experts // self.groups
        # Each group is scored by its best two experts (DeepSeek-V3).
        if self.scores is RouterScores.SIGMOID and size < 2:
            raise ConfigError(
                "model.routing.groups: with sigmoid a group's best two experts count, and these"
                f" have {size}"
            )
        # Enough experts must remain in the chosen groups.
        if per_token > self.groups_per_token * size:
            raise ConfigError(
                f"model.experts_per_token: {per_token} are more than the"
                f" {self.groups_per_token * size} experts of groups_per_token"
                f" {self.groups_per_token}"
            )
