"""The identity that a kubeconfig or `--as` asks to act as, as headers of each request.

The API server checks the right to impersonate. kubeconfigs name it in four fields of a user: `as`,
`as-uid`, `as-groups` and `as-user-extra`. The kubernetes package drops them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import quote

FIELDS: Final = frozenset(("as", "as-uid", "as-groups", "as-user-extra"))
"""Fields of a user in a kubeconfig."""
Headers = tuple[tuple[str, str], ...]
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_KEY_CHARACTERS: Final = "!#$&'*+-.^_`|~"
"""Allowed in the name of a header; others of an extra's key are percent-encoded."""


def headers_of(user: Mapping[str, Any]) -> Headers:
    """Return the headers for a user of a kubeconfig. Empty without impersonation.

    Raises:
        ValueError: a field has another type, or groups are named without a user.
    """
    name, uid = _text(user, "as"), _text(user, "as-uid")
    groups = _texts(user.get("as-groups"), "as-groups")
    extra: object = user.get("as-user-extra") or {}
    if not isinstance(extra, dict):
        raise ValueError("as-user-extra must be a map of lists")  # noqa: TRY004 - of the file
    extras = [
        # HTTP header names are case-insensitive, so the server compares the keys in lower case.
        (f"Impersonate-Extra-{quote(str(key).lower(), safe=_KEY_CHARACTERS)}", text)
        for key, texts in cast("dict[Any, Any]", extra).items()
        for text in _texts(texts, f"as-user-extra.{key}")
    ]
    return headers(user=name, uid=uid, groups=groups, extras=extras)


def headers(
    *,
    user: str,
    uid: str = "",
    groups: Sequence[str] = (),
    extras: Sequence[tuple[str, str]] = (),
) -> Headers:
    """Return the headers that ask to act as a user; none for an empty name alone.

    Args:
        user: name of the user.
        uid: unique id of the user.
        groups: its groups.
        extras: further headers.

    Raises:
        ValueError: a group, a uid or an extra without a user, or a control character.
    """
    if not user:
        # The API server answers 401 to groups without a user, which hides the cause.
        if uid or groups or extras:
            raise ValueError("as-uid, as-groups and as-user-extra need a user: set as")
        return ()
    named = [("Impersonate-User", user), *([("Impersonate-Uid", uid)] if uid else [])]
    result = (*named, *(("Impersonate-Group", group) for group in groups), *extras)
    # A line break in a value would start another header.
    if any(_CONTROL.search(value) for _, value in result):
        raise ValueError("a name to act as contains a control character")
    return result


def _text(user: Mapping[str, Any], field: str) -> str:
    value = user.get(field)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{field} must be a text")
    return value or ""


def _texts(value: Any, field: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(
        isinstance(each, str) for each in cast("list[Any]", value)
    ):
        raise ValueError(f"{field} must be a list of texts")
    return cast("list[str]", value)
