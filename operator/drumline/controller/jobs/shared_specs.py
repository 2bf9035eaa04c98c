"""One parsed spec for all jobs with equal specs, as long as one of them exists.

Jobs of a sweep, or of an evaluation that runs every hour, have equal specs. A parsed spec takes
kilobytes and is never changed in place.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from drumline.kube import codec
from drumline.kube.views import TrainingJobView
from drumline_api.load import ApiError, parse_readable
from drumline_api.trainingjob import TrainingJobSpec

UNREADABLE_QUEUE = "unreadable"
"""Queue of a job whose `spec.queue` cannot be read."""


class SharedSpecs:
    """The parsed specs in use, by their text."""

    def __init__(self) -> None:
        self._by_text: WeakValueDictionary[str, TrainingJobSpec] = WeakValueDictionary()

    def __len__(self) -> int:
        """Return the number of different specs in use."""
        return len(self._by_text)

    def read(self, view: TrainingJobView) -> tuple[TrainingJobSpec, ApiError | None]:
        """Parse the readable parts of a job's spec. Also return the first error, or None."""
        known = self._by_text.get(view.spec_json)
        # Dropped overrides are not part of the text, so such specs must not be shared.
        if known is not None and not view.dropped_overrides_bytes:
            return known, None
        spec, problem = parse_readable(
            TrainingJobSpec, codec.spec_of(view), at="spec", instead={"queue": UNREADABLE_QUEUE}
        )
        if problem is None and not view.dropped_overrides_bytes:
            self._by_text[view.spec_json] = spec
        return spec, problem
