"""A module of transformers without storage, and what the rest of the trainer asks of a model.

Its class gets one more base, as FSDP2 does it, so that parameters keep the model's own names. What
it computes is untouched. Parameters are on the meta device. Buffers have their values: they are
computed when a module is made (rotary frequencies), and are kept here, as giving storage to the
parameters drops them.

Shapes: B batch, S sequence, V vocabulary.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import math
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from drumline_contract.config import ConfigError, ModelConfig
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.transformers.documents import DocumentRows, sees_documents_apart
from drumline_trainer.sharding.slices import Cut

_POSITIONS, _CACHE = "position_ids", "use_cache"
_OF_MAMBA = ("out_proj", "dt_proj")


class CausalModule:
    """Interface of `models` on top of the forward pass of a transformers module."""

    kept_buffers: list[tuple[nn.Module, str, Tensor]]
    """Buffers by their place, with the values that they were made with."""
    tied: list[list[tuple[nn.Module, str]]]
    """Places that hold one parameter, where there are several."""
    takes_positions: bool
    takes_cache: bool
    documents_apart: bool
    """True if its own masks separate documents by their positions."""
    replicated: frozenset[str] = frozenset()
    """Names of weights that every rank of the tensor axis holds, until their gradients have been
    compared (`check_replicas`)."""

    def forward(self, inputs_BS: Tensor, documents: Documents | None = None) -> Tensor:
        """Return logits [batch, sequence, vocabulary] of tokens, each within its document."""
        if documents is None:
            return self._logits(inputs_BS)
        if self.documents_apart:
            return self._logits(inputs_BS, positions_BS=documents.since_begin)
        rows = DocumentRows.of(documents)
        return rows.windows(self._logits(rows.rows(inputs_BS)))

    def _logits(self, inputs_BS: Tensor, *, positions_BS: Tensor | None = None) -> Tensor:
        given: dict[str, Any] = {"input_ids": inputs_BS}
        if self.takes_cache:  # a cache would also switch off masks by documents
            given[_CACHE] = False
        if positions_BS is not None:
            given[_POSITIONS] = positions_BS
        compute: Any = getattr(super(), "forward")  # noqa: B009 - of the class beside this one, which no type checker knows
        return cast("Tensor", compute(**given).logits)


def build_module(config: ModelConfig) -> nn.Module:
    """Build a model without storage.

    Raises:
        ConfigError: transformers is missing or has no such causal model, or config.json does not
            fit the run's settings.
    """
    described = description(config)
    with _parameters_on_meta(), without_initial_values():
        module = new_module(described)
    cast("Any", module).tie_weights(recompute_mapping=False)  # left out with the initial values
    _constants_to_buffers(module)
    tied = _tied_places(module)
    module.__class__ = type(type(module).__name__, (CausalModule, type(module)), {})
    causal = cast("CausalModule", module)
    causal.kept_buffers = [
        (owner, name, buffer)
        for owner in module.modules()
        for name, buffer in owner._buffers.items()  # noqa: SLF001 - `named_buffers` has no owners # pyright: ignore[reportPrivateUsage] - as functional_call does
        if buffer is not None
    ]
    causal.tied = tied
    original: Any = type(module).__mro__[2]
    taken = inspect.signature(original.forward).parameters
    causal.takes_positions, causal.takes_cache = _POSITIONS in taken, _CACHE in taken
    causal.documents_apart = causal.takes_positions and sees_documents_apart(module)
    return module


def _constants_to_buffers(module: nn.Module) -> None:
    """Make parameters that the library itself does not train buffers that are stored, in place.

    So checkpoints hold them, and no gradient is waited for.
    """
    for owner in module.modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            if not parameter.requires_grad:
                delattr(owner, name)
                owner.register_buffer(name, torch.zeros(parameter.shape, dtype=parameter.dtype))


def description(config: ModelConfig) -> Any:
    """Return the configuration as transformers reads it.

    Raises:
        ConfigError: it is empty, or transformers cannot read it.
    """
    if not config.config_json:
        raise ConfigError(
            "model.config_json: is empty; name a folder with a config.json in model_from or"
            " config_from"
        )
    library = imported_library()
    raw: dict[str, Any] = json.loads(config.config_json)
    kind = raw.pop("model_type", None)
    if kind not in library.CONFIG_MAPPING:
        raise ConfigError(
            f"model_type: transformers {library.__version__} knows no {str(kind)[:64]!r}; install a"
            " version that does (code of a model's folder is not run)"
        )
    try:
        described = library.CONFIG_MAPPING[kind].from_dict(raw)
    except Exception as error:
        raise ConfigError(f"config.json: transformers refuses it: {_line(error)}") from error
    if type(described) not in library.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ConfigError(
            f"model_type: {kind} is not a causal language model in transformers"
            f" {library.__version__}"
        )
    described.use_cache = False
    return described


def new_module(described: Any) -> nn.Module:
    """Make a module in fp32. The caller chooses the device and the initial values.

    Raises:
        ConfigError: transformers cannot make it, or it sees later tokens.
    """
    library = imported_library()
    try:
        module = library.AutoModelForCausalLM.from_config(
            described, dtype=torch.float32, trust_remote_code=False
        )
    except Exception as error:
        raise ConfigError(f"config.json: transformers cannot make it: {_line(error)}") from error
    if getattr(module.config, "is_decoder", True) is False and _is_encoder(module):
        raise ConfigError(
            f"config.json: {type(module).__name__} is an encoder unless is_decoder is true, and"
            " would see the tokens that it is to predict; set is_decoder to true"
        )
    return module


def _is_encoder(module: nn.Module) -> bool:
    """Return whether its code reads `is_decoder`. Other models have the field and ignore it."""
    source = inspect.getsource(inspect.getmodule(type(module)) or module.__class__)
    return "config.is_decoder" in source


def imported_library() -> Any:
    """Import transformers without network access.

    Raises:
        ConfigError: it is not installed.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        return importlib.import_module("transformers")  # seconds that other runs do without
    except ImportError as error:
        raise ConfigError(
            "model.family: transformers needs the library transformers; install"
            " drumline[trainer-more]"
        ) from error


def settle(stage: nn.Module, device: torch.device) -> None:
    """Tie what was tied and give buffers their values, in place. Nothing for models of our own.

    For a stage whose parameters just got storage, each place one of its own.
    """
    if not isinstance(stage, CausalModule):
        return
    for (first, first_name), *places in stage.tied:
        parameter = first._parameters[first_name]  # noqa: SLF001 - no other way past FSDP2 # pyright: ignore[reportPrivateUsage] - as functional_call does
        for owner, name in places:
            owner._parameters[name] = parameter  # noqa: SLF001 - as above # pyright: ignore[reportPrivateUsage] - as functional_call does
    moved: dict[int, Tensor] = {}
    for owner, name, buffer in stage.kept_buffers:
        if id(buffer) not in moved:
            moved[id(buffer)] = buffer.to(device, copy=True)
        owner._buffers[name] = moved[id(buffer)]  # noqa: SLF001 - what is persistent stays so # pyright: ignore[reportPrivateUsage] - as functional_call does


def persistent_buffers(stage: nn.Module) -> list[tuple[str, Tensor]]:
    """List floating-point buffers that belong to the weights, as biases of routers, by name."""
    if not isinstance(stage, CausalModule):
        return []
    module = cast("nn.Module", stage)
    stored = module.state_dict(keep_vars=True)
    own = {(owner, name) for owner, name, _ in stage.kept_buffers}  # adapters pack theirs
    return [
        (path, buffer)
        for path, buffer in module.named_buffers()
        if path in stored and buffer.is_floating_point() and _place(module, path) in own
    ]


def _place(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    """Return the owner of a parameter or buffer, and its name there."""
    owner, _, name = path.rpartition(".")
    return module.get_submodule(owner), name


def linear_layers(
    module: nn.Module, *, cut: tuple[type[nn.Linear], ...] = ()
) -> dict[str, nn.Linear]:
    """Return the layers that take adapters, by name: all linear ones but the head, as in peft.

    A layer that shares its weight with another is none of them, nor one that computes otherwise,
    nor one of Mamba's whose weight its kernels read alone: they would leave out the adapter.

    Args:
        module: module of transformers.
        cut: classes of linear layers that the tensor axis has cut.
    """
    head = cast("Any", module).get_output_embeddings()
    tied = {owner for places in _tied_places(module) for owner, _ in places}
    return {
        name: each
        for name, each in cast("Iterator[tuple[str, nn.Module]]", module.named_modules())
        if isinstance(each, nn.Linear)
        and (isinstance(each, cut) or type(each).forward is nn.Linear.forward)
        and "forward" not in vars(each)
        and each is not head
        and each not in tied
        and not _passes_by(type(_place(module, name)[0]), name.rpartition(".")[2])
    }


@functools.cache
def _passes_by(owner: type[nn.Module], layer: str) -> bool:
    """Return whether a layer is one of Mamba's whose weight is read without calling the layer."""
    try:
        return layer in _OF_MAMBA and f"self.{layer}.weight" in inspect.getsource(owner)
    except (OSError, TypeError):  # a class that was made while the program runs
        return False


def units_of(module: nn.Module) -> list[nn.Module]:
    """Return the outermost modules that the model marks as not to be split, in order.

    Without such marks they are the members of the longest list of modules. A module that shares a
    parameter with others, such as an embedding with the head, is not a unit.
    """
    kinds = frozenset(getattr(module, "_no_split_modules", None) or ())
    units = list(dict.fromkeys(_outermost(module, kinds)))
    if not units:
        lists = [each for each in module.modules() if isinstance(each, nn.ModuleList)]
        units = list(max(lists, key=len, default=nn.ModuleList()))
    tied = [{owner for owner, _ in places} for places in _tied_places(module)]
    return [unit for unit in units if not any(_divides(unit, owners) for owners in tied)]


def _outermost(module: nn.Module, kinds: frozenset[str]) -> Iterator[nn.Module]:
    for child in module.children():
        if type(child).__name__ in kinds and next(child.parameters(), None) is not None:
            yield child
        else:
            yield from _outermost(child, kinds)


def _divides(unit: nn.Module, owners: set[nn.Module]) -> bool:
    inside = owners.intersection(unit.modules())
    return bool(inside) and inside != owners


def _tied_places(module: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    places: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False, remove_duplicate=False):
            places.setdefault(parameter, []).append((owner, name))
    return [each for each in places.values() if len(each) > 1]


@contextmanager
def without_initial_values() -> Generator[None]:
    """Let modules of transformers be made without drawing their weights."""
    imported_library()
    with importlib.import_module("transformers.initialization").no_init_weights():
        yield


@contextmanager
def _parameters_on_meta() -> Generator[None]:
    """Move parameters to the meta device when they are registered. Buffers keep their storage.

    One parameter at a time has storage, which is never written. Accelerate's `init_empty_weights`
    does the same.
    """
    register = nn.Module.register_parameter

    def on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and param.device.type != "meta":
            made = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
            vars(made).update(vars(param))
            self._parameters[name] = made  # pyright: ignore[reportPrivateUsage] - as Accelerate does

    nn.Module.register_parameter = on_meta
    try:
        yield
    finally:
        nn.Module.register_parameter = register


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]


def class_name(module: object) -> str:
    """Return the name that transformers gives a module's class, also if FSDP2 shards it."""
    return type(module).__name__.removeprefix("FSDP")


def weight_count(module: nn.Module, cuts: Mapping[str, Cut] | None = None) -> int:
    """Count the numbers of all parameters that learn, tied ones once, whatever the ranks hold."""
    shapes = {name: cut.shape for name, cut in (cuts or {}).items()}
    return sum(
        math.prod(shapes.get(name, weight.shape))
        for name, weight in module.named_parameters()
        if weight.requires_grad
    )


def state_names(module: nn.Module) -> Mapping[str, Tensor]:
    """Return parameters and persistent buffers by the model's own names, each once."""
    return dict(module.named_parameters()) | dict(persistent_buffers(module))
