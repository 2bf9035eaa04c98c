"""The config.json of a folder as Hugging Face lays it out, on this machine or in a bucket.

A multimodal model (Gemma 3 from 4B on) has the config.json of a language model inside its own, and
the language model's tensors lie beside those of the vision tower. Only the language model is read,
and what is written is a model of text.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from drumline_contract import BUCKET_SCHEMES, HUB_SCHEME
from drumline_contract.buckets.failures import StoreError
from drumline_contract.buckets.hub import Fetched, Wanted, fetched
from drumline_contract.buckets.path import AnyPath, any_path, read_apart, read_file
from drumline_contract.config import (
    ConfigError,
    check_place,
    has_model_of_folder,
    is_of_transformers,
    merge,
)
from drumline_contract.regular_files import LFS_POINTER, LFS_WORDS
from drumline_contract.shapes.hugging_face.kind import HuggingFaceError, Raw
from drumline_contract.shapes.hugging_face.stored_head import head_differs, names_head
from drumline_contract.shapes.hugging_face.translation import PACKING, refuse_packing, to_ours
from drumline_contract.shapes.hugging_face.vision import has_no_classifier

_OUTER: Final = {
    "gemma3": {
        "model_type": "gemma3_text",
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
    }
}
"""Their model type, and what is missing inside: there only what differs from this is written."""
_UNPACKED: Final = ("fp8", "mxfp4")
"""Ways of packing that `models.hugging_face` unpacks for a module of transformers."""
_OF_BOTH: Final = ("bos_token_id", "eos_token_id", "pad_token_id", PACKING)
_EARLIER, _LATER = "language_model.", "model.language_model."
LANGUAGE_MODULE: Final = _LATER
"""Path of the language model's layers in the module of a multimodal model."""
_VISION: Final = tuple(
    f"{before}{part}."
    for before in ("", "model.")
    for part in ("vision_tower", "multi_modal_projector")
)


def language_part(raw: Raw) -> dict[str, Any]:
    """Return the config.json of the language model inside a multimodal one, or `raw` unchanged.

    Raises:
        HuggingFaceError: a multimodal config.json has no language model.
    """
    missing = _OUTER.get(str(raw.get("model_type")))
    if missing is None:
        return dict(raw)
    inside = raw.get("text_config")
    if not isinstance(inside, Mapping):
        raise HuggingFaceError("config.json: text_config must be an object")
    # Files of Gemma 3 contain only values that differ from these defaults.
    values = {**missing, **cast("Raw", inside)}
    values.pop("architectures", None)  # of the checkpoint that it was begun from
    # Tokens and packing are properties of the whole folder.
    return values | {key: raw[key] for key in _OF_BOTH if key in raw}


def is_multimodal(folder: AnyPath) -> bool:
    """Return whether a folder's language model lies in a larger one. Raises as `read_json`."""
    return _config_of(folder).get("model_type") in _OUTER


def module_name(tensor: str, *, multimodal: bool) -> str:
    """Return the module in transformers that holds a tensor of the text model, by both paths.

    transformers loads the whole of a multimodal model, also where only text is generated.
    """
    name = tensor.removesuffix(".weight")
    return LANGUAGE_MODULE + name.removeprefix("model.") if multimodal else name


class LanguageNames:
    """Tensor names of the language model in a folder that may also hold a vision tower."""

    def __init__(self, stored: Collection[str]) -> None:
        # transformers changed the prefix between versions 4 and 5.
        inside = (prefix for prefix in (_EARLIER, _LATER) if _any_with(prefix, stored))
        self._prefix = next(inside, "")

    def stored(self, name: str) -> str:
        """Return the name in the files for a tensor's name in the text model."""
        if self._prefix == _LATER and name.startswith("model."):
            return _LATER + name.removeprefix("model.")
        return _EARLIER + name if self._prefix == _EARLIER else name

    def is_beside(self, stored: str) -> bool:
        """Return whether a tensor in the files does not belong to the language model."""
        # Only tensors of the vision tower may be left out. Others are an error of the reader.
        return bool(self._prefix) and stored.startswith(_VISION)


def _any_with(prefix: str, names: Collection[str]) -> bool:
    return any(name.startswith(prefix) for name in names)


CONFIG_FILE = "config.json"
_MAX_JSON_BYTES = 64 << 20
_PATH_ERRORS: Final = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
        *(errno.EACCES, errno.EPERM, errno.EFBIG),
    }
)
"""Errors that concern the path itself. All other errors concern the disk or the way to it."""
P = TypeVar("P")


def read_config(folder: AnyPath) -> dict[str, Any]:
    """Read the folder's config.json, or the language model's inside it. Raises as `read_json`."""
    return language_part(_config_of(folder))


def _config_of(folder: AnyPath) -> dict[str, Any]:
    """Read a folder's config.json, and say where one is if there is none. Raises as `read_json`."""
    if isinstance(folder, Path) and folder.is_dir() and not (folder / CONFIG_FILE).exists():
        if (folder / "adapter_config.json").exists():
            raise HuggingFaceError(
                f"{folder}: has no {CONFIG_FILE}, but adapters of peft; name it in"
                " lora.adapters_from, and the model of the adapters in model_from"
            )
        forms = (f"*/{CONFIG_FILE}", f"snapshots/*/{CONFIG_FILE}")
        below = next((path for form in forms for path in sorted(folder.glob(form))), None)
        if below is not None:
            raise HuggingFaceError(f"{folder}: has no {CONFIG_FILE}; name {below.parent}")
    return read_json(folder / CONFIG_FILE)


def with_model_of_folder(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Complete a run's configuration with the model of the folder `model_from`.

    A configuration that gives the model's width is returned unchanged. For family transformers the
    folder's config.json is copied unchanged, also that of `config_from`.

    Raises:
        ConfigError: `model_from` is not a valid place.
        HuggingFaceError: config.json is missing or not supported; or it describes an encoder of
            images without a classifier, and the number of classes is not given.
        StoreError: the folder's storage does not answer, or refuses.
    """
    # The configuration's own width marks a complete model.
    if not has_model_of_folder(raw):
        return dict(raw)
    if is_of_transformers(raw):
        return _with_module_of_folder(raw)
    folder, model = raw["model_from"], raw.get("model", {})
    check_place(folder, field="model_from")
    described = language_part(_described(folder))
    # The number of classes cannot be derived from an encoder.
    if has_no_classifier(described) and "classes" not in model:
        raise HuggingFaceError(
            f"model.classes: {folder} holds a ViT without a classifier; say how many classes the"
            " data has"
        )
    ours = asdict(to_ours(described))
    # A folder may state a tied head and store another one. Stored weights win.
    if ours["tied_embeddings"] and "tied_embeddings" not in model and _keeps_head(folder):
        ours["tied_embeddings"] = False
    # The user's values override the folder's.
    return merge({"model": ours}, dict(raw))


def _keeps_head(folder: str) -> bool:
    """Return whether the files hold a separate head although config.json says that it is tied."""
    if folder.startswith(BUCKET_SCHEMES):  # opening one would start the library's threads
        return False
    if not _is_hub(folder):
        return head_differs(Path(folder))
    # Most tied models store no head, so their weights are not downloaded here.
    named = names_head(from_hub(folder, "names", field="model_from").names)
    return named and head_differs(from_hub(folder, field="model_from").place)


_ABOUT_FILES: Final = (
    *("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"),
    *("use_cache", "auto_map", PACKING),
)
"""Keys of a config.json that say how its weights were stored or are called, not what they mean."""
_INNER: Final = ("text_config", "llm_config", "language_config", "decoder", "thinker_config")
_WORDS: Final = ("vocab_size", "n_words", "text_vocab_size")


def _with_module_of_folder(raw: Mapping[str, Any]) -> dict[str, Any]:
    field = "model_from" if raw.get("model_from") else "config_from"
    folder = raw[field]
    check_place(folder, field=field)
    described = _described(folder)
    # Keys about files would make equal models differ in the checkpoint's comparison.
    kept = {key: value for key, value in described.items() if key not in _ABOUT_FILES}
    # Weights are read and written unpacked.
    kept |= {
        name: {key: value for key, value in cast("Raw", kept[name]).items() if key != PACKING}
        for name in _INNER
        if isinstance(kept.get(name), dict)
    }
    if raw.get("model_from"):
        for part in _with_inner(described):
            if part.get(PACKING) is not None:
                refuse_packing(part[PACKING], unpacked=_UNPACKED)
    model: dict[str, Any] = {"config_json": json.dumps(kept, sort_keys=True)}
    if "vocab_size" not in raw.get("model", {}):
        model["vocab_size"] = _words_of(described, folder)
    return merge({"model": model}, dict(raw))


def _with_inner(described: Raw) -> Iterator[Raw]:
    """Yield a config.json, then the parts of a multimodal one that describe a language model."""
    yield described
    inner = (described.get(name) for name in _INNER)
    yield from (cast("Raw", each) for each in inner if isinstance(each, dict))


def _words_of(described: Mapping[str, Any], folder: str) -> int:
    """Return the vocabulary size of a language model, or of the one inside a multimodal model.

    Raises:
        HuggingFaceError: config.json has no vocab_size.
    """
    # The outer size wins over that of an inner part.
    for part in _with_inner(described):
        for name in _WORDS:
            size = part.get(name)
            # bool is an int in Python.
            if isinstance(size, int) and not isinstance(size, bool):
                return size
    raise HuggingFaceError(
        f"{folder}/{CONFIG_FILE}: has no vocab_size; write it there, or set model.vocab_size"
    )


def _described(folder: str) -> dict[str, Any]:
    """Read config.json. A bucket is read in another process, because the caller may fork ranks."""
    if _is_hub(folder):
        return read_json(from_hub(folder, "config", field="model_from").place / CONFIG_FILE)
    if folder.startswith(BUCKET_SCHEMES):
        place = f"{folder}/{CONFIG_FILE}"
        return _json_of(place, lambda place: read_apart(place, limit=_MAX_JSON_BYTES))
    return _config_of(Path(folder))


def model_folder(model_from: str) -> AnyPath:
    """Return the path that `model_from` names. A repository of the Hub is fetched first.

    Raises:
        ConfigError: it is a URL of an unsupported kind.
        HuggingFaceError: the Hub has no such repository, or refuses.
        StoreError: the Hub does not answer.
    """
    if _is_hub(model_from):
        return from_hub(model_from, field="model_from").place
    try:
        return any_path(model_from)
    except ValueError as error:
        raise ConfigError(f"model_from: {error}") from error


def _is_hub(place: str) -> bool:
    return place.startswith(HUB_SCHEME)


def from_hub(url: str, wanted: Wanted = "all", *, field: str) -> Fetched:
    """Do `fetched` for a setting.

    Args:
        url: hf:// URL of the repository.
        wanted: part of the repository to fetch.
        field: name of the setting, for errors.

    Raises:
        HuggingFaceError: the Hub has no such repository, or refuses.
        StoreError: the Hub does not answer.
    """
    try:
        return fetched(url, wanted)
    except ValueError as error:
        raise HuggingFaceError(f"{field}: {error}") from None
    except StoreError as error:
        if error.may_come_back:
            raise
        raise HuggingFaceError(f"{field}: {error}") from None


def read_json(path: AnyPath) -> dict[str, Any]:
    """Read a JSON object of bounded size.

    Raises:
        HuggingFaceError: the file is missing, not readable, or not a JSON object.
        StoreError: the storage does not answer.
    """
    return _json_of(path, lambda path: read_file(path, limit=_MAX_JSON_BYTES))


def unreadable(place: object, error: OSError) -> HuggingFaceError | StoreError:
    """Return the error that tells why a file was not read.

    Only a person mends a wrong folder, but a storage may recover by itself.

    So a claim that fails for a moment restarts a job's ranks and does not end the job.
    """
    reason = f"{place}: {error.strerror}"
    # A wrong path stays wrong, so the job ends. Other errors restart the ranks.
    if error.errno in _PATH_ERRORS:
        return HuggingFaceError(reason)
    return StoreError(reason, may_come_back=True)


def _json_of(place: P, read: Callable[[P], bytes]) -> dict[str, Any]:
    try:
        body = read(place)
        if body.startswith(LFS_POINTER):
            raise HuggingFaceError(f"{place}: is {LFS_WORDS}")
        value = json.loads(body)
    except OSError as error:
        raise unreadable(place, error) from error
    except (ValueError, RecursionError) as error:
        raise HuggingFaceError(f"{place}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise HuggingFaceError(f"{place}: not a JSON object")
    return cast("dict[str, Any]", value)
