"""The index of a prefix: its owner and the places of its committed steps. Values only."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from drumline_trainer.checkpoint.errors import CheckpointError, CorruptCheckpointError
from drumline_trainer.checkpoint.ownership import Owner

INDEX_FILE: Final = "index.json"
MAX_INDEX_BYTES: Final = 4 << 20
MAX_STEPS: Final = 10_000
PLACE: Final = re.compile(r"step-(?P<step>[0-9]{8,18})\.[0-9a-f]{1,64}\.[0-9]{1,9}")
_FORMAT: Final = "drumline-checkpoints"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Content of `index.json`."""

    owner: Owner
    places: Mapping[int, str] = field(default_factory=dict[int, str])
    """Places of the committed steps."""

    def owned_by(self, owner: Owner) -> Index:
        """Return the same steps with another owner."""
        return replace(self, owner=owner)

    def with_step(self, step: int, place: str) -> Index:
        """Add or replace a step.

        Raises:
            CheckpointError: there would be too many steps.
        """
        if len(self.places) >= MAX_STEPS and step not in self.places:
            raise CheckpointError(f"{MAX_STEPS} checkpoints lie there: keep fewer of them")
        return replace(self, places={**self.places, step: place})

    def without(self, steps: Sequence[int]) -> Index:
        """Remove these steps."""
        left = {step: place for step, place in self.places.items() if step not in steps}
        return replace(self, places=left)

    @property
    def steps(self) -> list[int]:
        """Newest first."""
        return sorted(self.places, reverse=True)

    def encode(self, *, change: str) -> bytes:
        """Encode as JSON.

        `change` identifies this write, so that a writer that lost the reply can recognize its own
        write.
        """
        places = {str(step): self.places[step] for step in sorted(self.places)}
        head = {"format": _FORMAT, "version": _VERSION, **self.owner.to_json(), "change": change}
        return (json.dumps({**head, "steps": places}, indent=1) + "\n").encode()

    @classmethod
    def parse(cls, body: bytes, *, where: str) -> Index:
        """Read `encode`. Raises CorruptCheckpointError for anything else."""
        try:
            raw: Any = json.loads(body)
            if (raw["format"], raw["version"]) != (_FORMAT, _VERSION):
                raise ValueError("another format")  # noqa: TRY301 - one message for all
            places = dict(_named(key, place) for key, place in dict(raw["steps"]).items())
            if len(places) > MAX_STEPS:
                raise ValueError("too many steps")  # noqa: TRY301 - same
            return cls(owner=Owner.parse(raw), places=places)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptCheckpointError(
                f"{where}/{INDEX_FILE} is damaged ({error!r}); it names the steps of the"
                " checkpoints beside it: restore an earlier version of it"
            ) from error


def _named(key: str, place: object) -> tuple[int, str]:
    """Decode a step and its place, which is deleted with it. Only names of saves are accepted.

    Raises:
        ValueError: the name is not that of a save of this step.
    """
    match = PLACE.fullmatch(place) if isinstance(place, str) else None
    if match is None or str(int(match["step"])) != key:
        raise ValueError(f"{place!r:.80} is no place of step {key:.20}")
    return int(key), match[0]
