"""Store the record in a ConfigMap of the notifier's namespace. The notifier writes nothing else.

Each write requires the version that was written before, so only one of two notifiers continues.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

import msgspec

from drumline.kube import reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import AlreadyExists, Conflict, NotFound
from drumline.kube.kinds import CONFIG_MAPS
from drumline_addons.notifications.record import SentRecord, UnreadableRecordError, packed, unpacked

_KEY: Final = "record"
_WRITER: Final = "writer"


class AnotherNotifierError(RuntimeError):
    """Another process wrote the record."""


class _RecordMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str


class _RecordObject(msgspec.Struct, frozen=True, rename="camel"):
    metadata: _RecordMetadata
    binary_data: dict[str, str] = {}


_decode: Final = msgspec.json.Decoder(_RecordObject).decode


class RecordConfigMap:
    """The record's ConfigMap, at the version that was last read or written.

    Args:
        client: The client to send with.
        namespace: Where it is.
        name: Its name.
        writer: Of this process alone. It is kept beside the record, as the API server gives no new
            version to an object that is replaced by an equal one: a successor's first write would
            leave its predecessor's version valid.
    """

    def __init__(self, client: KubeClient, *, namespace: str, name: str, writer: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._writer = writer
        self._version = ""

    async def read(self) -> SentRecord | None:
        """Return the record, or None if none was ever written.

        Raises:
            UnreadableRecordError: the ConfigMap contains something else.
            KubeError: the ConfigMap could not be read.
        """
        try:
            answer = await reads.get(
                self._client, CONFIG_MAPS, namespace=self._namespace, name=self._name
            )
            stored = _decode(answer)
            raw = base64.b64decode(stored.binary_data.get(_KEY, ""))
        except NotFound:
            return None
        except (msgspec.MsgspecError, binascii.Error) as error:
            raise UnreadableRecordError(f"{type(error).__name__}: {error}") from None
        self._version = stored.metadata.resource_version
        return unpacked(raw) if raw else None

    async def write(self, record: SentRecord) -> None:
        """Replace the record.

        Raises:
            AnotherNotifierError: the record is not the one that was last read or written.
            KubeError: the record could not be written.
        """
        metadata = {"name": self._name, "namespace": self._namespace}
        body = {
            "binaryData": {_KEY: base64.b64encode(packed(record)).decode()},
            "data": {_WRITER: self._writer},
        }
        try:
            if self._version:
                written = await writes.replace(
                    self._client,
                    CONFIG_MAPS,
                    namespace=self._namespace,
                    name=self._name,
                    body=body | {"metadata": metadata | {"resourceVersion": self._version}},
                )
            else:
                written = await writes.create(
                    self._client,
                    CONFIG_MAPS,
                    namespace=self._namespace,
                    body=body | {"metadata": metadata},
                )
        except (AlreadyExists, Conflict, NotFound) as error:
            raise AnotherNotifierError(f"ConfigMap {self._name} was changed: {error}") from None
        self._version = written.resource_version
