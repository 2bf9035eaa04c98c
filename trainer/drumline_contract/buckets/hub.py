"""Repositories of the Hugging Face Hub, fetched by the Hub's own library huggingface_hub.

    hf://ORG/NAME@REVISION/FOLDER             a model
    hf://datasets/ORG/NAME@REVISION/PATH      a folder of data, or one file

The files lie in the library's cache below HF_HOME. The library reads HF_ENDPOINT and HF_TOKEN,
continues broken transfers, and sends the token to no other host. This module adds three rules: only
types of files without programs are fetched, they must fit the disk, and the digest of each is
verified. The library starts threads, so it runs in a process of its own.
"""

from __future__ import annotations

import errno
import functools
import glob
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, cast

from drumline_contract import HUB_PATTERN, HUB_READERS, without_secrets
from drumline_contract.buckets.apart import answer_apart
from drumline_contract.buckets.failures import StoreError

Wanted = Literal["commit", "names", "config", "all"]
"""The commit of a revision alone, or also the names of a model's tensors, its small files, or all
files."""

_FOLDERS: Final = frozenset({"HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"})
_LOGGER: Final = logging.getLogger(__name__)
_MODULE: Final = "drumline_contract.buckets.hub"
_MOST_FILES: Final = 100_000
_MOST_SMALL_BYTES: Final = 256 << 20
_SMALL: Final = frozenset({".json", ".jinja", ".txt", ".model"})
"""Configuration, templates and tokenizers of a model."""
_TEMPLATES: Final = "additional_chat_templates"
_WEIGHTS: Final = ("model.safetensors", "adapter_model.safetensors")
_INDEX: Final = "model.safetensors.index.json"
_DATA: Final = frozenset(
    {
        *(".jsonl", ".ndjson", ".jsonlines", ".json", ".gz", ".parquet", ".arrow", ".txt", ".tar"),
        *(".bin", ".idx", ".ends", ".sums", ".npy"),
        *(".jpg", ".jpeg", ".png", ".webp", ".cls"),
    }
)
"""Data sets hold only what the readers of `data.source` take. None of them runs a program."""


_OF_THE_DISK: Final = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST),
        *(errno.ENOSPC, errno.EDQUOT),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPlace:
    """A parsed URL."""

    kind: Literal["model", "dataset"]
    repository: str
    revision: str | None
    path: str
    """Inside the repository; empty for all of it."""

    @classmethod
    def parse(cls, url: str) -> HubPlace:
        """Parse it.

        Raises:
            ValueError: it is not such a URL.
        """
        match = HUB_PATTERN.fullmatch(url)
        if match is None:
            raise ValueError(f"{url!r} must be hf://ORG/NAME, with @REVISION and /PATH if needed")
        revision = match["revision"]
        return cls(
            kind="dataset" if match["datasets"] else "model",
            repository=match["repository"],
            revision=None if revision is None else revision.replace("%2F", "/"),
            path=(match["path"] or "").strip("/"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """Files of one commit on this machine."""

    commit: str
    place: Path
    """The folder or file that the URL names."""
    names: frozenset[str] = frozenset()
    """Names of the model's tensors, if they were wanted and can be read."""


def fetched(url: str, wanted: Wanted = "all") -> Fetched:
    """Fetch files from the Hub, or find them in the cache.

    A process asks once for each URL, and ranks that start together and share a cache ask once in
    all. So a branch that moves does not change a run.

    Raises:
        StoreError: the Hub does not answer or refuses, or the files do not fit the disk.
    """
    named = _asked(url, "commit")
    return named if wanted == "commit" else _asked(_pinned(url, named.commit), wanted)


@functools.lru_cache(maxsize=64)
def _asked(url: str, wanted: Wanted) -> Fetched:
    if wanted == "all":
        _LOGGER.info("fetching %s, or finding it in the cache", url)
    try:
        answer = json.loads(answer_apart(_MODULE, url, wanted))
    except FileNotFoundError as error:  # the repository or a file of it
        raise StoreError(str(error.strerror), may_come_back=False) from None
    answered = Fetched(
        commit=answer["commit"],
        place=Path(answer["place"]),
        names=frozenset(answer.get("names", ())),
    )
    if wanted in ("config", "all"):
        _LOGGER.info("%s is in %s", url, answered.place)
    return answered


def _pinned(url: str, commit: str) -> str:
    """Return the URL with the commit in place of its revision."""
    place = HubPlace.parse(url)
    above = "datasets/" if place.kind == "dataset" else ""
    return f"hf://{above}{place.repository}@{commit}" + (f"/{place.path}" if place.path else "")


class _RefusedError(OSError):
    """Refused here and not by the Hub; `strerror` says why."""


def _fetch(place: HubPlace, wanted: Wanted) -> dict[str, Any]:
    """Do `fetched` in this process.

    Raises:
        OSError, huggingface_hub.errors.HfHubHTTPError: it is not there, or was not fetched.
    """
    import huggingface_hub  # noqa: PLC0415 - optional, and starts threads
    from huggingface_hub.constants import HF_HUB_CACHE  # noqa: PLC0415 - optional
    from huggingface_hub.utils import WeakFileLock  # noqa: PLC0415 - optional

    api, cache = huggingface_hub.HfApi(), Path(HF_HUB_CACHE)
    commit = _commit(api, place, cache)
    if wanted == "commit":
        return {"commit": commit, "place": ""}
    part: Wanted = "config" if wanted == "names" else wanted
    note = _note(cache, f"{place.kind} {place.repository} {commit} {place.path} {part}")
    # One process of this cache downloads and verifies at a time. The library's lock also works on
    # file systems without `flock`.
    with WeakFileLock(note.with_suffix(".lock")):
        if not (note.is_file() and (folder := Path(note.read_text())).is_dir()):
            folder = _download(api, place, commit, part, cache=cache)
            note.write_text(str(folder))
        answer = {"commit": commit, "place": str(folder / place.path)}
        if wanted != "names":
            return answer
        names = note.with_suffix(".names")
        if not names.is_file():
            names.write_text(json.dumps(_names(api, place, commit, folder / place.path)))
        return answer | {"names": json.loads(names.read_text())}


def _commit(api: Any, place: HubPlace, cache: Path) -> str:
    """Return the commit of the revision, which the first of all HUB_READERS asks for."""
    from huggingface_hub.utils import WeakFileLock  # noqa: PLC0415 - optional

    def asked() -> str:
        return api.resolve_revision(
            place.repository, repo_type=place.kind, revision=place.revision
        ).resolved

    readers = os.environ.get(HUB_READERS)
    if not readers:
        return asked()
    note = _note(cache, f"{place.kind} {place.repository} {place.revision} of {readers}")
    with WeakFileLock(note.with_suffix(".lock")):
        # A process that was killed while it wrote leaves an empty note.
        commit = note.read_text() if note.is_file() else ""
        if not commit:
            commit = asked()
            note.write_text(commit)
    return commit


def _note(cache: Path, about: str) -> Path:
    """Return the path of a note in the cache. The library leaves `.locks` out of its listings."""
    note = cache / ".locks" / "drumline" / hashlib.sha256(about.encode()).hexdigest()
    note.parent.mkdir(parents=True, exist_ok=True)
    return note


def _names(api: Any, place: HubPlace, commit: str, folder: Path) -> list[str]:
    """Return the names of a model's tensors, of its index or of the header of its only file."""
    import huggingface_hub  # noqa: PLC0415 - optional, and starts threads
    from huggingface_hub import errors  # noqa: PLC0415 - optional

    here = folder / _WEIGHTS[0]
    if (folder / _INDEX).is_file() and not here.is_file():
        return list(_weight_map(folder / _INDEX))
    try:
        if here.is_file():
            return list(huggingface_hub.parse_local_safetensors_file_metadata(here).tensors)
        file = f"{place.path}/{_WEIGHTS[0]}".lstrip("/")
        read = api.parse_safetensors_file_metadata(place.repository, file, revision=commit)
    except (errors.EntryNotFoundError, errors.SafetensorsParsingError):
        return []  # reported by the reader of the weights
    return list(read.tensors)


def _download(api: Any, place: HubPlace, commit: str, wanted: Wanted, *, cache: Path) -> Path:
    """Download the files and verify their digests. Returns the folder of the commit."""
    # Phase 1: list. A listing comes in pages, and a repository may have any number of them.
    entries = islice(
        api.list_repo_tree(place.repository, recursive=True, revision=commit, repo_type=place.kind),
        _MOST_FILES + 1,
    )
    sizes = {entry.path: int(entry.size) for entry in entries if hasattr(entry, "blob_id")}
    if len(sizes) > _MOST_FILES:
        raise _RefusedError(errno.EFBIG, f"more than {_MOST_FILES} files")
    # Phase 2: choose by name. The index of a model says which files of weights belong to it.
    get = functools.partial(_get, api, place, commit, sizes=sizes, cache=cache)
    if place.kind == "dataset":
        names = _data_files(place.path, sizes)
        return get(names, patterns=_data_patterns(place.path, names))
    small = _small_files(place.path, sizes)
    if wanted == "config":
        return get(small)
    index = f"{place.path}/{_INDEX}".lstrip("/")
    weight_map = get([index]) / index if index in sizes else None
    return get([*small, *_weight_files(place.path, sizes, weight_map)])


def _data_files(path: str, sizes: Iterable[str]) -> list[str]:
    below = [name for name in sizes if not path or name == path or name.startswith(f"{path}/")]
    if not below:
        raise _RefusedError(errno.ENOENT, f"no {path}")
    named = [name for name in below if Path(name).suffix.lower() in _DATA]
    if not named:
        raise _RefusedError(errno.ENOENT, "no file of a type that data.source reads")
    return named


def _data_patterns(path: str, names: list[str]) -> list[str]:
    """Return patterns of `_data_files`: few, as the library compares each with every file."""
    if names == [path]:
        return [glob.escape(path)]
    below = f"{glob.escape(path)}/*" if path else "*"
    return sorted({below + Path(name).suffix for name in names})


def _small_files(path: str, sizes: dict[str, int]) -> list[str]:
    above = f"{path}/" if path else ""
    below = [name.removeprefix(above) for name in sizes if name.startswith(above)]
    chosen = [
        above + name
        for name in below
        if Path(name).suffix in _SMALL and Path(name).parent.as_posix() in (".", _TEMPLATES)
    ]
    if not chosen:
        raise _RefusedError(errno.ENOENT, f"no model{f' in {path}' if path else ''}")
    large = next((name for name in chosen if sizes[name] > _MOST_SMALL_BYTES), None)
    if large is not None:
        raise _RefusedError(errno.EFBIG, f"{large} is larger than {_MOST_SMALL_BYTES} bytes")
    return chosen


def _weight_files(path: str, sizes: Iterable[str], index: Path | None) -> list[str]:
    """Return the files that the index names, or the only one, as far as they are listed."""
    above, there = f"{path}/" if path else "", frozenset(sizes)
    names: set[str] = set(_WEIGHTS)
    if index is not None:
        names |= {name for name in _weight_map(index).values() if name.endswith(".safetensors")}
    return [above + name for name in sorted(names) if above + name in there]


def _weight_map(index: Path) -> dict[str, str]:
    """Return the file of each tensor."""
    try:
        return {
            str(key): str(file)
            for key, file in json.loads(index.read_bytes())["weight_map"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _RefusedError(errno.EINVAL, f"{_INDEX} has no weight_map") from None


def _get(
    api: Any,
    place: HubPlace,
    commit: str,
    names: list[str],
    *,
    sizes: dict[str, int],
    cache: Path,
    patterns: list[str] | None = None,
) -> Path:
    """Download files of a commit and compare their digests with the Hub's.

    `patterns` match `names`. By default each name is a pattern.
    """
    import huggingface_hub  # noqa: PLC0415 - optional, and starts threads

    # Phase 1: room on the disk. Files of another commit may be there already, so this is an upper
    # bound that the cached part is taken from.
    cached = {
        name
        for name in names
        if isinstance(
            huggingface_hub.try_to_load_from_cache(
                place.repository, name, revision=commit, repo_type=place.kind
            ),
            str,
        )
    }
    needed = sum(sizes[name] for name in names if name not in cached)
    free = shutil.disk_usage(cache).free
    if needed > free:
        raise _RefusedError(
            errno.ENOSPC,
            f"{needed} bytes do not fit {cache}, which has {free}; let HF_HOME name a larger disk",
        )
    folder = Path(
        huggingface_hub.snapshot_download(  # pyright: ignore[reportUnknownMemberType] - overloads
            place.repository,
            repo_type=place.kind,
            revision=commit,
            allow_patterns=patterns or [glob.escape(name) for name in names],
        )
    )
    # Phase 2: digests. Git's for small files, SHA-256 for large ones.
    verified = api.verify_repo_checksums(place.repository, repo_type=place.kind, revision=commit)
    for mismatch in verified.mismatches:
        wrong = folder / mismatch["path"]
        wrong.resolve().unlink(missing_ok=True)
        wrong.unlink(missing_ok=True)
    if verified.mismatches:
        first = verified.mismatches[0]
        raise _RefusedError(
            errno.EREMOTEIO,
            f"{first['path']} has the {first['algorithm']} {first['actual']} and not"
            f" {first['expected']}; it was removed",
        )
    return folder


def _problem(error: Exception) -> tuple[int, str]:
    """Return the number and the reason of an error, without tokens or signed addresses."""
    from huggingface_hub import errors  # noqa: PLC0415 - optional

    # The library wraps the Hub's answer when it looks into its cache.
    answers = [error, error.__cause__, error.__context__]
    answer = next((each for each in answers if isinstance(each, errors.HfHubHTTPError)), error)
    match answer:
        case _RefusedError():
            return answer.errno or errno.EIO, str(answer.strerror)
        case errors.GatedRepoError():
            return errno.EACCES, "gated: accept its terms with the account that HF_TOKEN is of"
        case errors.RepositoryNotFoundError():
            return errno.ENOENT, "no such repository, or HF_TOKEN does not open it"
        case errors.RevisionNotFoundError():
            return errno.ENOENT, "no such revision"
        case errors.HfHubHTTPError():
            status = answer.response.status_code
            lost = status in (408, 429) or status >= 500
            advice = ": check HF_TOKEN" if status in (401, 403) else ""
            return errno.EREMOTEIO if lost else errno.EINVAL, f"the Hub answers {status}{advice}"
        case OSError() if answer.errno in _OF_THE_DISK:
            return answer.errno, f"{answer.filename}: {answer.strerror}; let HF_HOME name a folder"
        case _:
            said = without_secrets(str(error))
            return errno.EREMOTEIO, f"the Hub does not answer: {type(error).__name__}: {said}"


def main(url: str, wanted: Wanted) -> int:
    """Print the place as JSON. Returns 0, or the number of an error that standard error tells."""
    # The library reads these at its import.
    home = Path("~").expanduser() if "HOME" in os.environ else Path("/")
    if not (_FOLDERS & os.environ.keys() or os.access(home, os.W_OK)):  # as in a job's pod
        os.environ["HF_HOME"] = f"{tempfile.gettempdir()}/huggingface"
    os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    os.environ.pop("HF_DEBUG", None)  # prints requests
    try:
        answer = _fetch(HubPlace.parse(url), wanted)
    except ImportError:
        sys.stderr.write(f"{url}: needs huggingface_hub 2.4; install drumline[trainer-more]\n")
        return errno.EINVAL
    except Exception as error:  # noqa: BLE001 - the library's kinds are many, and all are one line
        number, reason = _problem(error)
        sys.stderr.write(f"{url}: {reason}\n")
        return number
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], cast("Wanted", sys.argv[2])))
