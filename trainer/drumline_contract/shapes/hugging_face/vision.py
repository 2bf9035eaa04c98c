"""Their vision transformer, and what is done to pixels before it sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from drumline_contract.config import Family, ModelConfig
from drumline_contract.shapes.hugging_face.kind import (
    HuggingFaceError,
    Kind,
    Part,
    Raw,
    TensorNames,
)

IMAGE_PROCESSOR_FILE = "preprocessor_config.json"
_SIDES: Final = {"image_size": 224, "patch_size": 16}
"""With what a missing one means."""
_SCALING: Final[dict[str, Any]] = {
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": 0.5,
    "image_std": 0.5,
}
"""Pixels of 0 to 255 become -1 to 1, as `models.vit` does it; and what a missing key means."""
_OTHER_PIXELS: Final = ("do_flip_channel_order", "do_grayscale", "offset")
"""Switches of some processors that change channels or the scale of pixels."""


def _read_shape(raw: Raw) -> dict[str, Any]:
    return {
        **{key: _side(raw, key) for key in _SIDES},
        "kv_heads": raw.get("num_attention_heads", 12),
        "classes": _classes(raw),
    }


def _side(raw: Raw, key: str) -> object:
    """Return the side of images or patches. Height and width must be equal.

    Raises:
        HuggingFaceError: they are not equal.
    """
    match raw.get(key, _SIDES[key]):
        case [height, width] if height == width:
            return height
        case [_, _] as sides:
            raise HuggingFaceError(f"config.json: {key} is {sides}; only squares can be imported")
        case side:
            return side


def _classes(raw: Raw) -> object:
    """Return the number of named classes. Without names it is `num_labels`, or two.

    Raises:
        HuggingFaceError: the names do not count from 0, or contradict the number.
    """
    names, count = raw.get("id2label"), raw.get("num_labels")
    if names is None:
        # transformers uses two labels if nothing is said.
        return 2 if count is None else count
    if not isinstance(names, Mapping):
        raise HuggingFaceError("config.json: id2label must be an object")
    names = cast("Raw", names)
    # Class numbers are rows of the classifier, so gaps would shift them.
    if set(names) != {str(number) for number in range(len(names))}:
        raise HuggingFaceError("config.json: id2label must name the classes from 0 on")
    if count not in (None, len(names)):
        raise HuggingFaceError(
            f"config.json: num_labels is {count}, and id2label has {len(names)} names"
        )
    return len(names)


def _write_shape(config: ModelConfig) -> dict[str, Any]:
    return {
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        **class_labels(config.classes),
    }


def class_labels(count: int, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the keys that name the classes; a class without a name is called by its number."""
    # Missing names get the default labels of transformers.
    known = dict(enumerate(names[:count]))
    labels = [known.get(number, f"LABEL_{number}") for number in range(count)]
    return {
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }


def has_no_classifier(raw: Raw) -> bool:
    """Return whether a folder holds an encoder without a classifier, as pretrained ViTs do."""
    return raw.get("model_type") == VIT.model_type and raw.get("architectures") == ["ViTModel"]


def fitted(there: ModelConfig, here: ModelConfig) -> ModelConfig:
    """Adopt the run's number of classes and image size in a folder's ViT.

    The classifier is initialized anew. Position embeddings are interpolated.
    """
    if there.family is not Family.VIT:
        return there
    # Fine-tuning replaces the classifier and interpolates positions.
    return replace(there, classes=here.classes, image_size=here.image_size)


VIT = Kind(
    model_type="vit",
    architecture="ViTForImageClassification",
    names=TensorNames.VIT,
    fields={
        "hidden_size": "hidden_size",
        "intermediate_size": "ffn_size",
        "num_hidden_layers": "layers",
        "num_attention_heads": "heads",
        "layer_norm_eps": "norm_epsilon",
        "num_channels": "channels",
    },
    fixed={"hidden_act": "gelu", "qkv_bias": True},
    meaning={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "layer_norm_eps": 1e-12,
        "num_channels": 3,
    },
    ours={"family": Family.VIT, "head_size": None, "class_token": True},
    parts=(
        Part(
            keys=frozenset({*_SIDES, "id2label", "label2id", "num_labels"}),
            read=_read_shape,
            write=_write_shape,
        ),
    ),
    ignored=frozenset(
        {
            *("hidden_dropout_prob", "attention_probs_dropout_prob"),  # a run's own
            *("encoder_stride", "pooler_act", "pooler_output_size"),  # of other heads than this
        }
    ),
)


def check_image_processor(values: Raw, model: ModelConfig) -> None:
    """Refuse pixels of another scale or number than the model is given here.

    Cropping and resizing are not checked, because `data.augmentation` defines them.

    Raises:
        HuggingFaceError: says which setting.
    """
    kind = values.get("image_processor_type", values.get("feature_extractor_type", "ViT"))
    # Defaults apply to ViT's own processor. Others have other defaults.
    of_vit = isinstance(kind, str) and kind.startswith("ViT")
    for key, expected in _SCALING.items():
        there = values.get(key, expected if of_vit else None)
        # Mean and deviation may be a list with one value for each channel.
        each = cast("list[object]", there) if isinstance(there, list) else [there]
        if not all(_equal(value, expected) for value in each):
            raise HuggingFaceError(
                f"{IMAGE_PROCESSOR_FILE}: {key} is {there!r}; only {expected!r} can be imported, as"
                " pixels are scaled to -1 to 1 here"
            )
    if changing := next((key for key in _OTHER_PIXELS if values.get(key)), None):
        raise HuggingFaceError(
            f"{IMAGE_PROCESSOR_FILE}: {changing} is {values[changing]!r}; only False can be"
            " imported, as pixels are red, green and blue from -1 to 1 here"
        )
    # The crop decides the final size.
    cropped = bool(values.get("do_center_crop")) and "crop_size" in values
    key = "crop_size" if cropped else "size"
    match values.get(key):
        case {"height": height, "width": width}:
            sides = [height, width]
        case {"shortest_edge": side} | side:
            sides = [side]
    if any(side not in (None, model.image_size) for side in sides):
        raise HuggingFaceError(
            f"{IMAGE_PROCESSOR_FILE}: {key} is {values[key]!r}, and config.json asks for an"
            f" image_size of {model.image_size}"
        )


def _equal(value: object, expected: float) -> bool:
    # True equals 1 in Python, so compare booleans by identity.
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    return isinstance(value, int | float) and math.isclose(value, expected, rel_tol=1e-6)


def image_processor(model: ModelConfig) -> dict[str, Any]:
    """Return settings of a Hugging Face image processor that match ours, but for its crop."""
    channels = {key: [_SCALING[key]] * model.channels for key in ("image_mean", "image_std")}
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": model.image_size, "width": model.image_size},
        "resample": 3,  # bicubic
        **_SCALING,
        **channels,
    }
