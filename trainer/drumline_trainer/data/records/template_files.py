"""The files beside a tokenizer: chat templates, special tokens, and the tokens that end answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from drumline_contract.buckets.path import AnyPath, read_file
from drumline_contract.config import ConfigError
from drumline_trainer.data.records.answer_spans import Ends
from drumline_trainer.data.records.chat_template import ChatTemplates

TEMPLATE_FILE: Final = "chat_template.jinja"
_MORE_TEMPLATES: Final = "additional_chat_templates"
_CONFIG_FILE: Final = "tokenizer_config.json"
_TOKENS_FILE: Final = "special_tokens_map.json"
_ADDED: Final = "added_tokens_decoder"
_ADDED_FILE: Final = "added_tokens.json"
_MODEL_FILE: Final = "config.json"
_GENERATION_FILES: Final = ("generation_config.json", _MODEL_FILE)
_MOST_TOKENS: Final = 1 << 31
MOST_TEMPLATE_BYTES: Final = 16 << 20


def chat_templates_of(folder: AnyPath, *, choice: str | None, ends: Ends) -> ChatTemplates:
    """Return the templates of a model's folder, or the one in the file `choice`.

    Args:
        folder: folder of the tokenizer.
        choice: `data.chat_template`, the name of one of the folder's templates or a file.
        ends: tokens that end turns.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    sources = _sources(folder)
    chosen = choice if choice in sources else None
    if choice is not None and chosen is None:
        if not choice.startswith("/"):
            raise ConfigError(
                f"data.chat_template: {folder} has no template {choice!r}; it has"
                f" {', '.join(sorted(sources)) or 'none'}"
            )
        sources = {"default": _read(Path(choice), field="data.chat_template")}
    if not sources:
        raise ConfigError(
            f"data.chat_template: {folder} has no chat template, as base models have none; name a"
            " file with one, such as that of the model's Instruct release"
        )
    tokens = special_tokens_of(folder)
    return ChatTemplates.of(sources, tokens=tokens, ends=ends, chosen=chosen)


def has_templates(folder: AnyPath) -> bool:
    """Return whether a model's folder has a chat template. Raises ConfigError."""
    return bool(_sources(folder))


def special_tokens_of(folder: AnyPath) -> dict[str, str]:
    """Return the special tokens of a folder by their names, such as `bos_token`.

    Raises:
        ConfigError: a file cannot be read.
    """
    values = {name: _content(token) for name, token in _named_tokens(folder).items()}
    return {name: text for name, text in values.items() if text is not None}


def special_entries_of(folder: AnyPath) -> dict[str, Mapping[str, Any]]:
    """Return the flags of all special tokens of a folder by text, with those of its lists.

    Raises:
        ConfigError: a file cannot be read.
    """
    config = _object(folder / _CONFIG_FILE)
    known = config if _ADDED in config else _tokenizer_settings(folder)
    listed = known.get("extra_special_tokens")
    if not listed or isinstance(listed, dict):
        listed = known.get("additional_special_tokens")
    more = cast("list[Any]", listed if isinstance(listed, list) else [])
    tokens = [*_named_tokens(folder).values(), *more]
    entries = ((_content(token), token) for token in tokens)
    return {
        text: cast("Mapping[str, Any]", token) if isinstance(token, dict) else {}
        for text, token in entries
        if text is not None
    }


def tokenizer_settings_of(folder: AnyPath) -> dict[str, Any]:
    """Return the content of a folder's tokenizer_config.json. Raises ConfigError."""
    return _object(folder / _CONFIG_FILE)


def model_settings_of(folder: AnyPath) -> dict[str, Any]:
    """Return the content of a folder's config.json. Raises ConfigError."""
    return _object(folder / _MODEL_FILE)


def _tokenizer_settings(folder: AnyPath) -> dict[str, Any]:
    config = _object(folder / _CONFIG_FILE)
    older = _object(folder / _TOKENS_FILE)
    # as transformers: the older file stands above where the newer one lists no added tokens
    return {**older, **config} if _ADDED in config else {**config, **older}


def _named_tokens(folder: AnyPath) -> dict[str, Any]:
    known = _tokenizer_settings(folder)
    named: dict[str, Any] = {}
    # transformers 5 writes the second key, and reads both
    for key in ("extra_special_tokens", "model_specific_special_tokens"):
        section = known.get(key)
        named |= cast("dict[str, Any]", section if isinstance(section, dict) else {})
    return {**named, **{name: each for name, each in known.items() if name.endswith("_token")}}


def added_tokens_of(folder: AnyPath) -> dict[int, Mapping[str, Any]]:
    """Return the tokens that tokenizer_config.json adds to tokenizer.json, by number.

    Raises:
        ConfigError: a file cannot be read.
    """
    listed = _object(folder / _CONFIG_FILE).get(_ADDED)
    entries = cast("dict[str, Any]", listed if isinstance(listed, dict) else {})
    return {
        int(number): cast("Mapping[str, Any]", entry)
        for number, entry in sorted(entries.items(), key=lambda pair: pair[0].zfill(12))
        if number.isdecimal() and isinstance(entry, dict)
    }


def older_added_tokens_of(folder: AnyPath) -> dict[int, Mapping[str, Any]]:
    """Return the tokens of added_tokens.json by number. Empty: tokenizer_config.json lists its own.

    Raises:
        ConfigError: a file cannot be read.
    """
    if _ADDED in _object(folder / _CONFIG_FILE):
        return {}
    special = special_entries_of(folder)
    pairs = ((number, text) for text, number in _object(folder / _ADDED_FILE).items())
    return {
        number: {"content": text, "special": text in special, "normalized": text not in special}
        for number, text in sorted(pair for pair in pairs if type(pair[0]) is int)
    }


def splits_special_tokens(folder: AnyPath) -> bool:
    """Return whether special tokens in a text are plain text. Raises ConfigError."""
    return _object(folder / _CONFIG_FILE).get("split_special_tokens") is True


def stop_numbers_of(folder: AnyPath) -> tuple[int, ...]:
    """Return the tokens after which a model stops, by its generation settings.

    Raises:
        ConfigError: a settings file cannot be read.
    """
    values: list[int] = []
    for name in _GENERATION_FILES:
        listed = _object(folder / name).get("eos_token_id")
        for number in cast("Iterable[Any]", listed if isinstance(listed, list) else [listed]):
            # some write -1 for none
            if type(number) is int and 0 <= number < _MOST_TOKENS and number not in values:
                values.append(number)
    return tuple(values)


def _sources(folder: AnyPath) -> dict[str, str]:
    """Return every template by name; files overrule the configuration, as in transformers."""
    files: dict[str, str] = {}
    if (folder / TEMPLATE_FILE).is_file():
        files["default"] = _read(folder / TEMPLATE_FILE, field="data.chat_template")
    for name in _template_names(folder / _MORE_TEMPLATES):
        place = folder / _MORE_TEMPLATES / f"{name}.jinja"
        files[name] = _read(place, field="data.chat_template")
    if files:
        return files
    source = _object(folder / _CONFIG_FILE).get("chat_template")
    if isinstance(source, str):
        return {"default": source}
    if isinstance(source, dict):
        named = cast("dict[str, Any]", source)
        return {name: text for name, text in named.items() if isinstance(text, str)}
    listed = cast("list[Any]", source if isinstance(source, list) else [])
    entries = [cast("dict[str, Any]", each) for each in listed if isinstance(each, dict)]
    pairs = [(each.get("name"), each.get("template")) for each in entries]
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def _template_names(folder: AnyPath) -> list[str]:
    if not isinstance(folder, Path):  # a bucket's folder is not listed
        return [name for name in ("tool_use", "rag") if (folder / f"{name}.jinja").is_file()]
    return sorted(path.stem for path in folder.glob("*.jinja"))


def _content(token: Any) -> str | None:
    text = cast("Mapping[str, Any]", token).get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _object(path: AnyPath) -> dict[str, Any]:
    """Read a JSON object. Empty if there is no such file.

    Raises:
        ConfigError: it cannot be read, or is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        values = json.loads(_read(path, field="model_from"))
        json.dumps(values, ensure_ascii=False).encode()  # half of a surrogate pair is not text
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"model_from: {path}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"model_from: {path} is not a JSON object")
    return cast("dict[str, Any]", values)


def _read(path: AnyPath, *, field: str) -> str:
    try:
        return read_file(path, limit=MOST_TEMPLATE_BYTES).decode()
    except OSError as error:
        raise ConfigError(f"{field}: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{field}: {path} is not UTF-8") from error
