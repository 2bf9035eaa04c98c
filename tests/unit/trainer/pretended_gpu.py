"""A GPU that computes on the host and counts how often the host would wait for it.

Under `PretendedGpu` the device "cuda" exists: its tensors (`OnGpu`) hold their values in the host's
memory, so that code whose sizes follow from values runs too, and look like a GPU's to everyone who
asks. Fake tensors have no values, and where there is no GPU their autograd does not run on "cuda".

Counted is what CUDA's documentation and `torch.cuda.set_sync_debug_mode` call synchronizing: values
that are read, copies that are not `non_blocking`, operations whose output's size is a value, events
that are waited for. Other ranks are pretended to do as this one does.

As CUDA's own operations, these refuse to work on tensors of the host and of the device together,
and where bits have to be the same each time those that cannot have them so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Self, cast

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)
_TAKES_BOTH = {"copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_"}
"""Copies; and places may lie in the host's memory, at the cost of a wait."""
_IN_NO_ORDER = {
    *("nll_loss2d_forward", "put_", "put", "histc", "median", "nanmedian", "scatter_reduce"),
    *("scatter_reduce_", "_embedding_bag", "grid_sampler_2d", "upsample_bilinear2d", "_ctc_loss"),
}
"""Refused by CUDA as `torch.use_deterministic_algorithms` lists it, counts with weights besides."""
_BENEATH = torch.device("meta")
"""What torch's own code takes these tensors for: a device that needs no driver."""
_SIZED_BY_VALUES = {
    "nonzero",
    "masked_select",
    "bincount",
    "unique_consecutive",
    "unique_dim",
    "_unique2",
    "equal",
}


class OnGpu(torch.Tensor):
    """Values that the host has, and may not look at without being counted."""

    held: Tensor

    def __new__(cls, values: Tensor) -> Self:
        """Of what the host has."""
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=_BENEATH,
        )
        made.held = values
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride] - a property in torch too
        """As everyone sees it."""
        return GPU

    def record_stream(self, _: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - torch's own wants a stream of its own
        """Its memory is not given to others before that stream is done."""

    def tolist(self) -> Any:
        """By a copy, as torch does it for a GPU's."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Without the mode: only to be printed by a test that fails."""
        del types
        return func(*_plain(args), **_plain(kwargs or {}))


class PretendedGpu(TorchDispatchMode):
    """Within it the device "cuda" can be used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, capability: tuple[int, int]) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.assembled = False
        """From here on nothing is on the device meta, whose tensors torch makes beneath these."""
        monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
        monkeypatch.setattr(torch.cuda, "Event", self._event)
        monkeypatch.setattr(torch.cuda, "Stream", self._stream)
        monkeypatch.setattr(torch.cuda, "current_stream", self._stream)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: GPU.index)
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda *_: torch.get_rng_state())
        monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *_: None)

    def _event(self, **_: Any) -> Any:
        return _Event(self.waits)

    def _stream(self, *_: Any, **__: Any) -> Any:
        return _Stream(self.waits)

    def __enter__(self) -> Self:
        self._lifted = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # as fake tensors have it: copies are seen
        return cast("Self", super().__enter__())

    def __exit__(self, *error: object) -> None:
        torch._C._set_only_lift_cpu_tensors(self._lifted)
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let the host compute what the device is asked for."""
        del types
        kwargs = dict(kwargs or {})
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        here = [leaf for leaf in leaves if isinstance(leaf, OnGpu)]
        name = func.overloadpacket.__name__
        target, given = self._target(kwargs, here), "device" in kwargs
        kwargs.pop("pin_memory", None)
        if waits := _waits(name, args, kwargs, target=target):
            self.waits.append(f"{name}: {waits}")
        if not here and not target:
            return func(*args, **kwargs)
        _refuse_strangers(name, leaves)
        weighted = name == "bincount" and len(args) > 1
        if name in _IN_NO_ORDER or weighted:
            raise RuntimeError(f"{name} does not have a deterministic implementation")
        if given and kwargs["device"] is not None:
            kwargs["device"] = torch.device("cpu")
        made = _computed(func, name, _plain(args), _plain(kwargs))
        if isinstance(made, Tensor) and name in ("_to_copy", "clone") and not target and given:
            return made
        if _writes(func):
            return kwargs.get("out", args[0])
        return tree_map(lambda part: OnGpu(part) if isinstance(part, Tensor) else part, made)

    def _target(self, kwargs: Mapping[str, Any], here: Sequence[Tensor]) -> bool:
        """Whether the result is on the device."""
        device = kwargs.get("device")
        if device is None:
            return bool(here)
        kind = torch.device(device).type
        return kind == "cuda" or (kind == "meta" and (self.assembled or bool(here)))


def _refuse_strangers(name: str, leaves: Sequence[Tensor]) -> None:
    """Raise as torch does where a tensor of the host, not a mere number, is among the device's."""
    here = [leaf for leaf in leaves if isinstance(leaf, OnGpu)]
    strangers = [leaf for leaf in leaves if leaf.device.type == "cpu" and leaf.dim()]
    if here and strangers and name not in _TAKES_BOTH:
        raise RuntimeError(
            f"{name}: Expected all tensors to be on the same device, but found at least two"
            f" devices, {GPU} and cpu: {[tuple(leaf.shape) for leaf in leaves]}"
        )


class _Stream:
    """Whose work is done at once."""

    device = GPU

    def __init__(self, waits: list[str]) -> None:
        self._waits = waits

    def wait_event(self, _: Any) -> None:
        """The device waits, not the host."""

    wait_stream = wait_event

    def record_event(self, event: Any = None) -> Any:
        """As `Event.record`."""
        return event or _Event(self._waits)

    def synchronize(self) -> None:
        """Wait for all of it."""
        self._waits.append("Stream.synchronize")


class _Event:
    def __init__(self, waits: list[str]) -> None:
        self._waits = waits

    def record(self, stream: Any = None) -> None:
        """Into the stream."""

    def wait(self, stream: Any = None) -> None:
        """The device waits, not the host."""

    def synchronize(self) -> None:
        """Wait for it."""
        self._waits.append("Event.synchronize")


def _waits(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, target: bool) -> str:
    """Why the host would wait here, or nothing."""
    first = args[0] if args else None
    if name == "_local_scalar_dense" and isinstance(first, OnGpu):
        return "a value is read"
    if name == "_to_copy":
        crosses = isinstance(first, OnGpu) != target
        return "a blocking copy" if crosses and not kwargs.get("non_blocking") else ""
    if name == "copy_":
        blocking = not (len(args) > 2 and args[2]) and not kwargs.get("non_blocking")
        crosses = isinstance(first, OnGpu) != isinstance(args[1], OnGpu)
        return "a blocking copy" if crosses and blocking else ""
    if not any(isinstance(leaf, OnGpu) for leaf in tree_leaves(args)):
        return ""
    if name in _SIZED_BY_VALUES or (
        name == "repeat_interleave" and kwargs.get("output_size") is None
    ):
        return "its size is a value"
    if name in ("index", "index_put_", "index_put"):
        masks = [i for i in args[1] if i is not None and i.dtype is torch.bool]
        elsewhere = [i for i in args[1] if i is not None and not isinstance(i, OnGpu)]
        return "a mask, or places in the host's memory" if masks or elsewhere else ""
    return ""


def _plain(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.held if isinstance(leaf, OnGpu) else leaf, tree)


def _writes(func: Any) -> bool:
    """Whether it returns the tensor it was given, and has written into."""
    returned = func._schema.returns
    return len(returned) == 1 and bool(returned[0].alias_info and returned[0].alias_info.is_write)


def _computed(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if func.namespace == "c10d":
        made = func(*args, **kwargs)
        if name in ("recv_", "recv_any_source_"):
            args[0][0].zero_()
        if name in _EXCHANGES:
            _EXCHANGES[name](args[0], args[1])
        return made
    if name == "_varlen_attn":  # by a kernel that only a GPU has
        q_THE = args[0]
        if q_THE.shape[-1] % 8:
            raise RuntimeError("head_size should be a multiple of 8")
        heads = q_THE.new_zeros(q_THE.shape[1], len(q_THE), dtype=torch.float32)
        return q_THE.clone(), heads, torch.zeros(2, dtype=torch.uint64)
    if name == "_varlen_attn_backward":
        return tuple(part.clone() for part in args[1:4])
    return func(*args, **kwargs)


def _gathered(whole: Tensor, own: Tensor) -> None:
    whole.view(-1, own.numel()).copy_(own.view(1, -1).expand(whole.numel() // own.numel(), -1))


def _scattered(own: Tensor, whole: Tensor) -> None:
    own.view(-1).copy_(whole.view(-1)[: own.numel()])


def _all_to_all(received: Tensor, sent: Tensor) -> None:
    if received.shape == sent.shape:
        received.copy_(sent[:1].expand_as(sent) if sent.shape[0] < 16 else sent)
    else:
        received.zero_()


_EXCHANGES: dict[str, Callable[[Tensor, Tensor], None]] = {
    "_allgather_base_": _gathered,
    "_reduce_scatter_base_": _scattered,
    "alltoall_base_": _all_to_all,
}
