"""Initial weights of a run: the trained and the frozen ones.

They are random by seed and name, or from a folder in the layout of Hugging Face. Checkpoints hold
trained weights and no frozen ones, so frozen weights are filled at every start, and a checkpoint
names its base. Adapters have no meaning on another base, and preferences are compared with one
reference for the whole run.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from drumline_contract.config import ConfigError, Family, TrainerConfig
from drumline_contract.config.learning import patterns_of
from drumline_contract.config.saved import model_digest
from drumline_contract.shapes.hugging_face import model_folder
from drumline_trainer.adapters.lora import A, B, LoraLinear, PackedLoraLinear
from drumline_trainer.adapters.peft import read_peft
from drumline_trainer.models.hugging_face import load_for_copies, load_hugging_face, weights_digest
from drumline_trainer.models.initialize import fill_normal, initialize_slices
from drumline_trainer.models.transformers.module import CausalModule
from drumline_trainer.models.transformers.weights import fill_slices
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice, named_modules


def initialize_frozen_and_adapters(
    slices: Sequence[TensorSlice],
    frozen: Sequence[TensorSlice],
    stages: Sequence[nn.Module],
    *,
    config: TrainerConfig,
    restored: Mapping[str, Any] | None,
    device: torch.device | None = None,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Fill what is not restored; see `initial_weights.initialize_weights`.

    Collective where there is a device, which is that of the tensors that travel.

    Args:
        slices: parts of trained weights.
        frozen: parts of frozen weights.
        stages: this rank's stages.
        config: configuration of the run.
        restored: state of the checkpoint. None: a new run.
        device: device of the collective. None: one rank.
        progress: called between tensors.
    """
    # Phase 1: a checkpoint must fit the base before anything of the base is read.
    if restored is not None and config.has_base:
        check_base(restored, config=config)
    # Restored runs have their trained weights already. Frozen ones are in no checkpoint.
    empty: Sequence[TensorSlice] = [] if restored is not None else slices
    # Phase 2: adapters.
    _begin_adapters([part for part in empty if is_adapter(part)], stages, config=config)
    rest = [part for part in empty if not is_adapter(part)]
    # Phase 3: the base, if any of its weights are missing here. Every rank takes the same branch,
    # as messages follow.
    if restored is None or config.has_base:
        initialize_base([*rest, *frozen], stages, config=config, device=device, progress=progress)


def _begin_adapters(
    slices: Sequence[TensorSlice], stages: Sequence[nn.Module], *, config: TrainerConfig
) -> None:
    """Fill all A and B: from a folder, or so that they add nothing yet."""
    if config.lora is None or config.lora.adapters_from is None or config.model_from is None:
        initialize_adapters(slices, seed=config.seed)
        return
    folder = model_folder(config.lora.adapters_from)
    adapters = read_peft(
        folder,
        model=config.model,
        base=model_folder(config.model_from),
        layers=_linear_names(stages),
    )
    # Phase 1: settings must agree, because rank and scale decide about shapes and about outputs.
    there, here = adapters.config, config.lora
    for setting in ("rank", "alpha", "rslora"):
        if getattr(there, setting) != getattr(here, setting):
            value = json.dumps(getattr(there, setting))
            raise ConfigError(
                f"lora.{setting}: the adapters of {folder} have another; set it to {value}"
            )
    # Phase 2: layers must agree. A module of transformers is compared by tensors, our models by
    # projections.
    if config.model.family is Family.TRANSFORMERS:
        same = set(adapters.tensors) == {part.name for part in slices}
    else:
        same = there.projections == here.projections_of(config.model)
    # A stage of a pipeline may have no adapter at all.
    if slices and not same:
        raise ConfigError(
            f"lora.targets: the adapters of {folder} have another; set it to {there.targets}"
        )
    # Phase 3: copy. Each rank cuts its own box out of the whole tensor.
    for part in slices:
        tensor = adapters.tensors[part.name]
        if tuple(tensor.shape) != part.shape:
            raise ConfigError(
                f"lora.adapters_from: {folder}: {part.name} has the shape {tuple(tensor.shape)},"
                f" and the model asks for {part.shape}"
            )
        # The box is relative to the whole tensor, whose offsets are 0.
        whole = Box(offsets=(0,) * tensor.dim(), shape=part.shape)
        part.tensor.copy_(tensor[part.box.slices_within(whole)])


def _linear_names(stages: Sequence[nn.Module]) -> list[str]:
    """Return the names of a transformers module's linear layers, with or without adapters."""
    return [
        name
        for stage in stages
        if isinstance(stage, CausalModule)
        for name, module in named_modules(cast("nn.Module", stage))
        if isinstance(module, nn.Linear | LoraLinear)
    ]


def initialize_adapters(slices: Iterable[TensorSlice], *, seed: int) -> None:
    """Fill all A and B: the adapters add nothing yet."""
    for part in slices:
        # B begins at 0, so the product is 0 and training begins at the base.
        if part.name.endswith(B):
            part.tensor.zero_()
        else:
            fill_normal(
                part.tensor,
                box=part.box,
                name=part.name,
                shape=part.shape,
                seed=seed,
                # 1 / sqrt(inputs). peft draws A by `kaiming_uniform_` with a = sqrt(5), with a
                # standard deviation of 1 / sqrt(3 * inputs).
                std=part.shape[-1] ** -0.5,
            )


def with_progress(
    progress: Callable[[], None], slices: Iterable[TensorSlice]
) -> Iterator[TensorSlice]:
    """Yield the slices, with a call before each."""
    for part in slices:
        progress()
        yield part


def initialize_base(
    slices: Iterable[TensorSlice],
    stages: Sequence[nn.Module],
    *,
    config: TrainerConfig,
    device: torch.device | None = None,
    progress: Callable[[], None],
) -> None:
    """Fill all weights but the adapters, also those that stages keep packed.

    From a folder, a weight that is packed passes through host memory completely.

    Args:
        slices: slices to fill.
        stages: stages of this rank.
        config: configuration of the run.
        device: device of messages if ranks share the reading. None: each rank reads all.
        progress: called before each weight.

    Raises:
        ConfigError: the folder is not of this model, or adapters would be on a new classifier.
    """
    # Phase 1: packed layers. Their weights are no parameters, so no slice has them.
    modules = itertools.chain.from_iterable(stage.modules() for stage in stages)
    packed = [module for module in modules if isinstance(module, PackedLoraLinear)]
    if config.model.family is Family.TRANSFORMERS:
        # A module of transformers takes its weights by the names of its own state.
        _initialize_module(slices, *stages, packed=packed, config=config, progress=progress)
        return
    # Phase 2, random weights: one packed layer at a time needs host memory for one weight only.
    if config.model_from is None:
        slices = with_progress(progress, slices)
        initialize_slices(slices, config=config.model, seed=config.seed)
        for layer in packed:
            progress()
            room = layer.unpacked()
            initialize_slices([room], config=config.model, seed=config.seed)
            layer.take(room)
        return
    # Phase 3, a folder: slices and packed layers are filled in one pass.
    rooms = [layer.unpacked() for layer in packed]
    filled = [*slices, *rooms]
    folder, model = model_folder(config.model_from), config.model
    # With a device, copies of the model share the reading, which spares the storage.
    if device is None:
        absent = load_hugging_face(folder, filled, config=model, progress=progress)
    else:
        absent = load_for_copies(folder, filled, config=model, device=device, progress=progress)
    # Absent is the classifier only, if its classes differ. Its random weights must learn.
    if any(not config.learns(name) for name in absent):
        raise ConfigError(
            f"trainable: the classifier of {config.model_from} has not {config.model.classes}"
            " classes; it begins at random, and frozen it would stay so; let 'output.*' learn"
        )
    # Adapters leave the classifier frozen too.
    if absent and config.lora is not None:
        raise ConfigError(
            f"lora: the classifier of {config.model_from} has not {config.model.classes} classes;"
            " it begins at random, and beneath adapters it would stay so; train without lora"
        )
    # Whatever the folder lacks is drawn by name, the same on all ranks.
    initialize_slices(
        (part for part in filled if part.name in absent), config=config.model, seed=config.seed
    )
    # Rooms are packed at the end, when all of their contents are there.
    for layer, room in zip(packed, rooms, strict=True):
        layer.take(room)


def _initialize_module(
    slices: Iterable[TensorSlice],
    module: nn.Module,
    *,
    packed: Sequence[PackedLoraLinear],
    config: TrainerConfig,
    progress: Callable[[], None],
) -> None:
    """Fill the weights of a module of transformers, also those that are kept packed."""
    rooms = [layer.unpacked() for layer in packed]
    # Adapters are not in the base's files. Packed weights are, under their old names.
    own = {name for name, _ in module.named_parameters() if not is_adapter_name(name)}
    names = own | {room.name for room in rooms}
    fill_slices([*slices, *rooms], module, config=config, names=names, progress=progress)
    for layer, room in zip(packed, rooms, strict=True):
        layer.take(room)


def is_adapter(part: TensorSlice) -> bool:
    """Return whether it is an A or a B."""
    return is_adapter_name(part.name)


def is_adapter_name(name: str) -> bool:
    """Return whether it is the name of an A or a B."""
    return name.rpartition(".")[2] in (A, B)


@functools.cache
def base_description(config: TrainerConfig) -> dict[str, Any]:
    """Describe the base of adapters or preferences as JSON values, equal for equal bases.

    For a configuration that `has_base`.
    """
    # The digest of a folder covers its content, so a renamed or copied base is the same base.
    weights = f"seed {config.seed}"
    if config.model_from is not None:
        weights = f"content {weights_digest(model_folder(config.model_from))}"
    base = {"weights": weights, "model": model_digest(config.model)}
    # The choice of frozen weights is part of the base. Patterns are sorted, because their order has
    # no meaning.
    if config.freezes:
        fields = {"trainable": config.trainable, "freeze": config.freeze}
        return base | {
            field: None if text is None else sorted(patterns_of(text))
            for field, text in fields.items()
        }
    if config.lora is None:
        return base
    alpha = config.lora.alpha
    return base | {
        # Quantization is part of the base: the adapters correct the rounding of this packing.
        "bits": "4, doubly" if config.lora.double_quantization else config.lora.base_bits,
        "alpha": f"{alpha:g}, rank-stabilized" if config.lora.rslora else alpha,
    }


def check_base(saved: Mapping[str, Any], *, config: TrainerConfig) -> None:
    # Messages name the field that the user can change.
    """Raise ConfigError unless what was saved belongs to the configured base."""
    there, here = saved.get("base"), base_description(config)
    unknown = "lora: the checkpoint does not say which base its adapters belong on"
    another = "lora: the checkpoint's adapters belong on another base"
    if config.freezes:
        field = "freeze" if config.freeze is not None else "trainable"
        unknown = f"{field}: the checkpoint does not say which weights its run left as they began"
        another = f"{field}: the checkpoint's run left other weights as they began"
    elif config.lora is None:
        unknown = "dpo: the checkpoint does not say which reference its run was compared with"
        another = "dpo: the checkpoint's run was compared with another reference"
    # Checkpoints without a description come from runs without a base.
    if not isinstance(there, dict):
        raise ConfigError(unknown)
    there = cast("dict[str, Any]", there)
    for name, value in here.items():
        if there.get(name) != value:
            raise ConfigError(f"{another}; {name}: {there.get(name)} there and {value} here")
