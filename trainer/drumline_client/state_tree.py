"""Convert a program's state to a description and the bytes of its tensors, and back. No pickle.

    {"model": model, "epoch": 3}                   pack, by state_dict() of what has it
    -> ["dict", [["model", ["OrderedDict", [["weight", ["tensor", 0]]]]], ["epoch", 3]]]
       and one record: float32, shape [4, 4], at byte 0

Containers, numbers and texts are JSON; of a DTensor the shard of this rank is kept, with the name
of its mesh and placements. Only what can be rebuilt exactly is taken: anything else is refused when
it is packed, with its path, not when it is needed.

A value is rebuilt in the tensor at the same path of the state that is restored into, or else (an
optimizer that has made no step has no moments) beside the tensors that have its mesh.

Imports torch, so it is imported late: the client itself needs the standard library alone.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, cast

import torch

from drumline_client.snapshot_file import SnapshotError

ALIGNMENT: Final = 64
"""Alignment of each tensor in the body, in bytes."""
MAX_DEPTH: Final = 64
_MAPPINGS: Final[dict[str, Any]] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_SCALARS: Final = (bool, int, float, str, type(None))
MAX_INTEGER_BITS: Final = 8192
"""Python converts longer integers to text only if a program allows it."""


@dataclass(frozen=True)
class PackedTensor:
    """One tensor of the body, or this rank's shard of a DTensor."""

    dtype: str
    shape: list[int]
    device: str
    offset: int
    sharding: int | None = None
    """For a DTensor: index of its mesh and placements."""
    whole_shape: list[int] = field(default_factory=list[int])
    whole_stride: list[int] = field(default_factory=list[int])


@dataclass
class PackedState:
    """Result of `pack`. The tensors are the program's own, not copies."""

    parts: dict[str, Any] = field(default_factory=dict[str, Any])
    """Description of each part, by name."""
    records: list[PackedTensor] = field(default_factory=list[PackedTensor])
    tensors: list[torch.Tensor] = field(default_factory=list[torch.Tensor])
    shardings: list[str] = field(default_factory=list[str])
    bytes: int = 0
    """Size of all tensors, with the gaps between them, in bytes."""

    @property
    def description(self) -> dict[str, Any]:
        """Return the description as JSON."""
        records = [asdict(record) for record in self.records]
        return {"parts": self.parts, "tensors": records, "shardings": self.shardings}


@torch.no_grad()
def pack(**parts: Mapping[str, Any]) -> PackedState:
    """Describe the parts of a state.

    Raises:
        TypeError: a value cannot be rebuilt exactly. The message names its path.
    """
    packed = PackedState()
    packer = _Packer(packed)
    for name, part in parts.items():
        packed.parts[name] = packer.node(part, path=name, depth=0)
    return packed


@torch.no_grad()
def copy_into(buffer: torch.Tensor, packed: PackedState) -> None:
    """Copy every tensor to its place in a host buffer of bytes."""
    for record, tensor in zip(packed.records, packed.tensors):
        # Empty tensors have no bytes, and their offset can be the end of the buffer.
        if tensor.numel():
            end = record.offset + tensor.numel() * tensor.element_size()
            place = buffer[record.offset : end].view(tensor.dtype).view(tensor.shape)
            # A pinned buffer lets copies run beside each other. The caller synchronizes once.
            place.copy_(tensor, non_blocking=buffer.is_pinned())


@torch.no_grad()
def unpack(
    description: Mapping[str, Any], body: memoryview, **parts: MutableMapping[str, Any]
) -> None:
    """Fill the parts of a state from a packed state of the same structure.

    Tensors are filled in place, objects with `load_state_dict` load their part, and other values of
    the mappings are replaced.

    Args:
        description: structure, shapes and offsets of the packed state.
        body: packed tensors.
        **parts: states by name.

    Raises:
        SnapshotError: its keys differ, or a DTensor has a mesh that the state lacks.
    """
    # Phase 1: describe the present state, whose tensors receive the values.
    likes = {
        name: {key: _state_of(value) for key, value in part.items()} for name, part in parts.items()
    }
    unpacker = _Unpacker(description, body, likes)
    # Phase 2: compare keys before any value changes, so that an error leaves the part intact.
    for name, part in parts.items():
        _, nodes = description["parts"][name]
        differing = {key for key, _ in nodes} ^ set(part)
        if differing:
            keys = ", ".join(sorted(str(key) for key in differing))
            raise SnapshotError(f"the snapshot and the state differ in {keys}")
        # Phase 3: rebuild each value and hand it over.
        for key, node in nodes:
            value = unpacker.value(node, likes[name][key])
            if _is_stateful(part[key]):
                part[key].load_state_dict(value)
            else:
                part[key] = value


class _Packer:
    def __init__(self, packed: PackedState) -> None:
        self._packed = packed
        self._names = _ShardingNames()

    def node(self, value: Any, *, path: str, depth: int) -> Any:
        """Return the description of a value. Its tensors are added to the packed state."""
        if depth > MAX_DEPTH:
            raise TypeError(f"{path}: nested deeper than {MAX_DEPTH} containers")
        # type, not isinstance: a bool is an int, and subclasses would lose their type.
        if type(value) in _SCALARS:
            return _bounded(value, path=path)
        if isinstance(value, torch.Tensor):
            return ["tensor", self._tensor(value, path=path)]
        # Tensors come first, because some tensor subclasses have a state_dict too.
        if _is_stateful(value):
            return self.node(value.state_dict(), path=f"{path}.state_dict()", depth=depth + 1)
        mapping, children = _mapping(value), _list(value)
        if mapping is not None:
            return self._mapping(mapping, path=path, depth=depth)
        # A namedtuple cannot be rebuilt from a plain tuple, so it ends in the error.
        if children is not None and not hasattr(value, "_fields"):
            nodes = [
                self.node(child, path=f"{path}[{position}]", depth=depth + 1)
                for position, child in enumerate(children)
            ]
            return ["list" if isinstance(value, list) else "tuple", nodes]
        return self._leaf(value, path=path)

    def _mapping(self, value: Mapping[Any, Any], *, path: str, depth: int) -> Any:
        names = [name for name, kind in _MAPPINGS.items() if isinstance(value, kind)]
        pairs: list[list[Any]] = []
        for key, child in value.items():
            if type(key) not in _SCALARS:
                raise TypeError(f"{path}: a key of type {type(key).__name__}")
            pairs.append([key, self.node(child, path=f"{path}[{key!r}]", depth=depth + 1)])
        # OrderedDict and Counter are dicts, so the last match is the most specific name.
        return [names[-1] if names else "dict", pairs]

    def _leaf(self, value: Any, *, path: str) -> Any:
        # sys.modules: numpy is only used if the program already imported it.
        numpy: Any = sys.modules.get("numpy")
        if isinstance(value, bytes):
            return ["bytes", value.hex()]
        # Object arrays hold pointers, which mean nothing in another process.
        if numpy is not None and isinstance(value, numpy.generic):
            number = value.item()
            # Dates, complex numbers and records have no number or text of JSON.
            if type(number) in _SCALARS:
                return number
        # A subclass has more than its elements, such as a mask.
        if numpy is not None and type(value) is numpy.ndarray and value.dtype.kind not in "OV":
            flat = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
            number = self._add(torch.as_tensor(flat), device="cpu")
            return ["array", [number, value.dtype.str, list(value.shape)]]
        raise TypeError(
            f"{path}: a {type(value).__name__} cannot be in a snapshot; tensors, arrays, numbers,"
            " text, lists, dicts and objects with state_dict and load_state_dict can"
        )

    def _tensor(self, tensor: Any, *, path: str) -> int:
        # The local shard only: every rank saves its own part.
        if _is_sharded(tensor):
            local: Any = tensor.to_local()
            _refuse_indirect(local, path=path)
            return self._add(
                local,
                device=local.device.type,
                sharding=self._sharding(self._names.of(tensor)),
                whole_shape=list(tensor.shape),
                whole_stride=list(tensor.stride()),
            )
        _refuse_indirect(tensor, path=path)
        return self._add(tensor, device=tensor.device.type)

    def _add(self, tensor: torch.Tensor, *, device: str, **whole: Any) -> int:
        packed = self._packed
        record = PackedTensor(
            dtype=str(tensor.dtype).replace("torch.", ""),
            shape=list(tensor.shape),
            device=device,
            offset=packed.bytes,
            **whole,
        )
        size = tensor.numel() * tensor.element_size()
        # Ceiling division keeps each offset at a multiple of ALIGNMENT.
        packed.bytes += -(-size // ALIGNMENT) * ALIGNMENT
        packed.records.append(record)
        packed.tensors.append(tensor.detach())
        return len(packed.records) - 1

    def _sharding(self, name: str) -> int:
        known = self._packed.shardings
        if name not in known:
            known.append(name)
        # Many tensors share one sharding, so records refer to it by index.
        return known.index(name)


def _refuse_indirect(tensor: Any, *, path: str) -> None:
    """Refuse a tensor whose numbers are not its own dense memory.

    Raises:
        TypeError: the message names the path.
    """
    # Sparse, quantized, nested and meta tensors have no single run of bytes.
    is_dense = tensor.layout == torch.strided and not tensor.is_nested
    if not is_dense or tensor.is_quantized or tensor.device.type == "meta":
        raise TypeError(f"{path}: only dense tensors with memory can be in a snapshot")
    if not hasattr(tensor, "__tensor_flatten__"):
        return
    # A subclass of a library. It may wrap the numbers, with a scale for example. A quantized one
    # would come back as a plain tensor.
    parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    wrapped = [part for part in parts if (part.dtype, part.shape) == (tensor.dtype, tensor.shape)]
    if len(wrapped) != 1 or any(part.numel() > 1 for part in parts if part is not wrapped[0]):
        raise TypeError(f"{path}: a {type(tensor).__name__} cannot be in a snapshot")


def _fits(target: torch.Tensor, stored: torch.Tensor) -> bool:
    """Return whether a tensor can receive these numbers, each in a place of its own."""
    if (target.dtype, target.shape) != (stored.dtype, stored.shape):
        return False
    # An expanded tensor repeats one element.
    return all(stride or length <= 1 for stride, length in zip(target.stride(), target.shape))


def _bounded(value: Any, *, path: str) -> Any:
    """Return a number, text or None.

    Raises:
        TypeError: it is an integer that is too long.
    """
    if type(value) is int and value.bit_length() > MAX_INTEGER_BITS:
        raise TypeError(f"{path}: an integer of {value.bit_length()} bits")
    return value


class _Unpacker:
    def __init__(self, description: Mapping[str, Any], body: memoryview, likes: Any) -> None:
        self._records: list[PackedTensor] = [
            PackedTensor(**record) for record in description["tensors"]
        ]
        self._body = body
        self._names = _ShardingNames()
        # Moments of an optimizer that made no step have no tensor of their own to fill.
        known = _sharded_like(likes, names=self._names)
        self._shardings = description["shardings"]
        self._like = [known.get(name) for name in self._shardings]
        """A DTensor of the state for each mesh and placements."""

    def value(self, node: Any, like: Any) -> Any:
        """Return the value of a node, in the tensors of `like` if they exist."""
        # Lists of the description are nodes. Everything else is its own value.
        if not isinstance(node, list):
            return node
        kind, content = cast("tuple[str, Any]", node)
        if kind in _MAPPINGS:
            likes = _mapping(like) or {}
            pairs: Any = [(key, self.value(child, likes.get(key))) for key, child in content]
            # The state has no `default_factory`, so the program's own is kept.
            if isinstance(like, defaultdict):
                return defaultdict(cast("Any", like).default_factory, pairs)
            return _MAPPINGS[kind](dict(pairs))
        if kind in ("list", "tuple"):
            known = _list(like) or []
            # Missing entries rebuild without a target, so a longer list in the snapshot is valid.
            known += [None] * (len(content) - len(known))
            values = [self.value(child, known[at]) for at, child in enumerate(content)]
            return values if kind == "list" else tuple(values)
        if kind == "bytes":
            return bytes.fromhex(content)
        if kind == "array":
            number, dtype, shape = content
            # clone: the body is unmapped after the restore.
            flat: Any = self._stored(self._records[int(number)]).clone().numpy()
            return flat.view(dtype).reshape(shape)
        return self._tensor(self._records[int(content)], like)

    def _tensor(self, record: PackedTensor, like: Any) -> torch.Tensor:
        stored = self._stored(record)
        if isinstance(like, torch.Tensor):
            target = self._local_part(like, record)
            # A filled tensor keeps its identity, so references of the program stay valid.
            if target is not None and _fits(target, stored):
                target.copy_(stored)
                return like
        # Another dtype or shape: the value replaces the tensor at this path.
        copy = stored.clone() if record.device == "cpu" else stored.to(record.device)
        if record.sharding is None:
            return copy
        sibling: Any = self._like[record.sharding]
        if sibling is None:
            name = self._shardings[record.sharding]
            raise SnapshotError(f"no part of the state is sharded as {name}")
        dtensor = cast("Any", type(sibling))
        # run_check would run a collective, but ranks restore independently.
        return dtensor.from_local(
            copy,
            sibling.device_mesh,
            sibling.placements,
            run_check=False,
            shape=torch.Size(record.whole_shape),
            stride=tuple(record.whole_stride),
        )

    def _local_part(self, like: Any, record: PackedTensor) -> torch.Tensor | None:
        """Return the destination of a record's bytes in a tensor, or None if its kind differs."""
        if not _is_sharded(like):
            return like if record.sharding is None else None
        # The same mesh and shape imply the same local part.
        same = record.sharding is not None and (
            (self._names.of(like), list(like.shape))
            == (self._shardings[record.sharding], record.whole_shape)
        )
        return like.to_local() if same else None

    def _stored(self, record: PackedTensor) -> torch.Tensor:
        """Return the tensor in the body, not a copy."""
        # getattr: a snapshot of a newer torch can name an unknown dtype.
        dtype = getattr(torch, record.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise SnapshotError(f"this version of torch has no {record.dtype}")
        count = 1
        for length in record.shape:
            count *= length
        if count == 0:
            return torch.empty(record.shape, dtype=dtype)
        # No copy: the tensor refers to the mapped file.
        flat = torch.frombuffer(self._body, dtype=dtype, count=count, offset=record.offset)
        return flat.view(record.shape)


class _ShardingNames:
    """Names of meshes and placements, equal in every process with this rank's place."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}

    def of(self, tensor: Any) -> str:
        """Return the name of a DTensor's mesh and placements."""
        mesh = tensor.device_mesh
        # Building the name lists the whole mesh, so it is done once for each mesh.
        key = (mesh, tensor.placements)
        if key not in self._names:
            axes = f"{mesh.device_type} {mesh.mesh_dim_names} {mesh.mesh.tolist()}"
            self._names[key] = f"{tensor.placements} on {axes}"
        return self._names[key]


def _sharded_like(values: Any, *, names: _ShardingNames) -> dict[str, Any]:
    """Return a DTensor of each mesh and placements in these values, by name."""
    sharded: dict[str, Any] = {}
    rest = [values]
    # An explicit stack: depth is bounded when packing, not here.
    while rest:
        value = rest.pop()
        if _is_sharded(value):
            sharded.setdefault(names.of(value), value)
        else:
            rest.extend((_mapping(value) or {}).values())
            rest.extend(_list(value) or [])
    return sharded


def _mapping(value: Any) -> Mapping[Any, Any] | None:
    return cast("Mapping[Any, Any]", value) if isinstance(value, Mapping) else None


def _list(value: Any) -> list[Any] | None:
    """Return the description of a list or a tuple."""
    return list(cast("list[Any]", value)) if isinstance(value, (list, tuple)) else None


def _is_sharded(value: Any) -> bool:
    """Return whether the value is a DTensor. None exists before the program imported its module."""
    distributed: Any = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(value, distributed.DTensor)


def _is_stateful(value: Any) -> bool:
    """Return whether the value implements torch's protocol `Stateful`."""
    return callable(getattr(value, "state_dict", None)) and callable(
        getattr(value, "load_state_dict", None)
    )


def _state_of(value: Any) -> Any:
    return value.state_dict() if _is_stateful(value) else value
