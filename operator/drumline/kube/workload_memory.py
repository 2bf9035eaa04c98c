"""Bound the cost of one event of a foreign workload.

A tenant may write a large object and then patch one of its annotations any number of times. So a
workload of more than `MAX_BYTES` is not read: it keeps waiting, and the log names it. The spec of a
smaller one is read again only if its generation or its status has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import structs

from drumline.kube.codec import OUR_PREFIX, Undecodable, decoded
from drumline.kube.workload_views import WorkloadView
from drumline_api.objects.base import Metadata, ObjectPart, OwnerReference

MAX_BYTES: Final = 256 * 1024
"""Most bytes of one workload, including the metadata that the API server adds."""
_MOST_KNOWN: Final = 20_000
"""Workloads that are remembered before all of them are forgotten."""


class _WorkloadHead(ObjectPart, frozen=True):
    """A workload whose spec and status stay as they are."""

    metadata: Metadata
    status: msgspec.Raw = msgspec.Raw(b"{}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _RememberedWorkload:
    generation: int
    status: bytes
    owners: tuple[OwnerReference, ...]
    is_deleted: bool
    view: WorkloadView


_decoder: Final = msgspec.json.Decoder(_WorkloadHead)


class WorkloadDecoder:
    """Decodes the workloads of one kind.

    Args:
        decode: decodes a whole object.
    """

    def __init__(self, decode: Callable[[bytes], WorkloadView]) -> None:
        self._decode = decode
        self._known: dict[str, _RememberedWorkload] = {}

    def __call__(self, raw: bytes | msgspec.Raw) -> WorkloadView:
        """Return one workload.

        Raises:
            Undecodable: it is too large, or not of this kind.
        """
        # The size is checked before any parsing: parsing is the cost that this bounds.
        size = memoryview(raw).nbytes
        if size > MAX_BYTES:
            raise Undecodable(
                f"the object has {size} bytes: want at most {MAX_BYTES} for a workload that waits"
                " for quota; shorten its templates"
            )
        # The head decoder skips the spec, which is most of the document.
        head = decoded(_decoder, raw)
        metadata, status = head.metadata, bytes(head.status)
        owners, is_deleted = (
            tuple(metadata.owner_references or ()),
            bool(metadata.deletion_timestamp),
        )
        known = self._known.get(metadata.uid)
        # The generation is 0 if the server does not count it, and then nothing is remembered.
        if (
            known is not None
            and metadata.generation
            # The generation does not count changes of the status, nor of owners or of a deletion.
            and (known.generation, known.status) == (metadata.generation, status)
            and (known.owners, known.is_deleted) == (owners, is_deleted)
        ):
            # Labels and annotations do not raise the generation, so they are read each time.
            return structs.replace(
                known.view,
                resource_version=metadata.resource_version,
                labels=own_texts(metadata.labels),
                annotations=own_texts(metadata.annotations),
            )
        view = self._decode(bytes(raw))
        # Clearing all is simple and rare. One more decoding for each workload is the only cost.
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[metadata.uid] = _RememberedWorkload(
            generation=metadata.generation,
            status=status,
            owners=owners,
            is_deleted=is_deleted,
            view=view,
        )
        return view


def own_texts(texts: dict[str, str] | None) -> dict[str, str]:
    """Return the labels or annotations that are ours."""
    return {name: text for name, text in (texts or {}).items() if name.startswith(OUR_PREFIX)}
