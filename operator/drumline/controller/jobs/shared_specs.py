"""One parsed spec for all jobs whose specs are equal, for as long as one of them is there.

A sweep, an array of evaluations or a job that is submitted every hour are equal texts. A parsed
spec takes kilobytes, and is never changed in place.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from drumline.kube import codec
from drumline.kube.views import TrainingJobView
from drumline_api.load import ApiError, parse_readable
from drumline_api.trainingjob import TrainingJobSpec

UNREADABLE_QUEUE = "unreadable"
"""The queue of a job whose own cannot be read."""


class SharedSpecs:
    """The parsed specs that are in use, by their text."""

    def __init__(self) -> None:
        self._by_text: WeakValueDictionary[str, TrainingJobSpec] = WeakValueDictionary()

    def __len__(self) -> int:
        """How many different specs are in use."""
        return len(self._by_text)

    def read(self, view: TrainingJobView) -> tuple[TrainingJobSpec, ApiError | None]:
        """What can be read of a job's spec, and the first field that cannot."""
        known = self._by_text.get(view.spec_json)
        if known is not None and not view.dropped_overrides_bytes:
            return known, None
        spec, problem = parse_readable(
            TrainingJobSpec, codec.spec_of(view), at="spec", instead={"queue": UNREADABLE_QUEUE}
        )
        if problem is None and not view.dropped_overrides_bytes:
            self._by_text[view.spec_json] = spec
        return spec, problem
