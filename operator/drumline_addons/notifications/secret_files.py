"""Read keys of Secrets from mounted files, at each use because they may be rotated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drumline_addons.notifications.channels import SecretKey
from drumline_addons.notifications.delivery import DeliveryError

_MOST_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretFiles:
    """Files of the form `FOLDER/SECRET/KEY`.

    Attributes:
        folder: mount point of the Secrets.
    """

    folder: Path

    def read(self, key: SecretKey) -> str:
        """Return the text of a key, without surrounding whitespace.

        Raises:
            DeliveryError: the key does not exist or cannot be read.
        """
        where = f"key {key.key!r} of Secret {key.secret!r}"
        try:
            with (self.folder / key.secret / key.key).open("rb") as file:
                raw = file.read(_MOST_BYTES + 1)
            text = raw.decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DeliveryError(f"{where} cannot be read: {type(error).__name__}") from None
        if not text or len(raw) > _MOST_BYTES:
            raise DeliveryError(f"{where} is empty or larger than {_MOST_BYTES} bytes")
        return text
