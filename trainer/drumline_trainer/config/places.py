"""Where the files of a run lie, as far as a name alone says it."""

from __future__ import annotations

from drumline_trainer.config.errors import ConfigError
from drumline_trainer.contract import BUCKET_FORMS, checked_bucket


def check_place(place: str, *, field: str) -> None:
    """Raise ConfigError for a URL that is none of a bucket; a folder's name may be any."""
    if "://" not in place:
        return
    try:
        checked_bucket(place)
    except ValueError:  # it shows the value, which may hold a password
        raise ConfigError(
            f"{field}: must be a folder, {BUCKET_FORMS}, without a slash at its end"
        ) from None
