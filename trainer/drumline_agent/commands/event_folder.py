"""The newest event file of TensorBoard in a folder, read as it grows, a bounded part at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drumline_agent.commands.event_records import (
    HEADER_BYTES,
    MAX_RECORD_BYTES,
    TRAILER_BYTES,
    EventFileError,
    record_length,
    scalar_event,
)
from drumline_agent.commands.progress_lines import ProgressLine

NAME: Final = "events.out.tfevents."
"""Prefix of event file names, used by SummaryWriter, Keras and tensorboardX."""
LOSS_TAGS: Final = (
    "train/loss",  # Hugging Face's Trainer
    "train_loss_step",  # Lightning, logged in each step
    "train_loss",
    "loss_metrics/global_avg_loss",  # torchtitan
    "lm loss",  # Megatron-LM
    "loss",
    "Loss/train",
)
MAX_DEPTH: Final = 4
MAX_ENTRIES: Final = 4096
"""Maximum number of entries of a folder and its subfolders that are examined."""
MAX_READ_RECORDS: Final = 10_000
MAX_READ_BYTES: Final = 4 << 20
"""At a time; what is behind waits for the next time."""
KEPT_FILES: Final = 16
"""Files whose position is kept: programs write training and evaluation to files of their own."""


@dataclass(slots=True)
class _EventFile:
    """The position in one file, and the newest step and loss before it."""

    offset: int = 0
    step: int | None = None
    loss: float | None = None


class EventFolder:
    """Event files of one program. Every call may wait for the storage."""

    def __init__(self, folder: Path, *, loss_tag: str = "") -> None:
        """Prepare the reader; nothing is read yet.

        Args:
            folder: contains the files, perhaps in subfolders; need not exist.
            loss_tag: tag of the loss; empty: the first of LOSS_TAGS that an event has.
        """
        self._folder = folder
        self._loss_tags = (loss_tag,) if loss_tag else LOSS_TAGS
        self._known: dict[Path, _EventFile] = {}
        """Files by path. The file that was read last comes last."""
        self._shows_loss = False
        """True once a file had a loss: one without is of evaluations, say."""

    def read(self) -> ProgressLine | None:
        """Return step and loss after the newest records, or None if there are none.

        Raises:
            OSError: the folder or its file cannot be read.
        """
        newest = self._newest()
        if newest is None:
            return None
        # A restarted program opens a new file, in which its steps begin anew.
        known = self._known[newest] = self._known.pop(newest, None) or _EventFile()
        if len(self._known) > KEPT_FILES:
            del self._known[next(iter(self._known))]
        # Report only changes, or an idle program would look as if it trained.
        before = (known.step, known.loss)
        with newest.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            try:
                self._read_records(file.fileno(), known, size=size)
            except EventFileError:
                known.offset = size  # damaged: what follows cannot be told from it
        if known.step is None or (known.step, known.loss) == before:
            return None
        if known.loss is None and self._shows_loss:
            return None
        self._shows_loss = known.loss is not None
        return ProgressLine(step=known.step, loss=known.loss)

    def _read_records(self, file: int, known: _EventFile, *, size: int) -> None:
        # Bounded per read. Large records are skipped and do not count.
        end = known.offset + MAX_READ_BYTES
        for _ in range(MAX_READ_RECORDS):
            if known.offset + HEADER_BYTES > size or known.offset >= end:
                return
            header = os.pread(file, HEADER_BYTES, known.offset)
            if len(header) < HEADER_BYTES:
                return
            length = record_length(header)
            following = known.offset + HEADER_BYTES + length + TRAILER_BYTES
            if following > size:
                return  # it is being written
            if length <= MAX_RECORD_BYTES:
                self._note(os.pread(file, length, known.offset + HEADER_BYTES), known)
            else:
                end += length
            known.offset = following

    def _note(self, data: bytes, known: _EventFile) -> None:
        event = scalar_event(data)
        if event is None:
            return
        loss = next((event.values[tag] for tag in self._loss_tags if tag in event.values), None)
        if loss is not None:
            known.step, known.loss = event.step, loss
        elif known.loss is None:  # others may count evaluations, say
            known.step = event.step

    def _newest(self) -> Path | None:
        """Return the most recently written file. Links are not followed."""
        files = ((entry.stat(follow_symlinks=False).st_mtime_ns, entry) for entry in self._files())
        newest = max(files, key=lambda item: (item[0], item[1].path), default=None)
        return None if newest is None else Path(newest[1].path)

    def _files(self) -> Iterator[os.DirEntry[str]]:
        # Bounded in depth and number, without links: the folder is the user's.
        folders, seen = [(str(self._folder), 0)], 0
        while folders:
            folder, depth = folders.pop()
            try:
                entries = os.scandir(folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
            with entries:
                for entry in entries:
                    seen += 1
                    if seen > MAX_ENTRIES:
                        return
                    if entry.is_dir(follow_symlinks=False) and depth < MAX_DEPTH:
                        folders.append((entry.path, depth + 1))
                    elif entry.name.startswith(NAME) and entry.is_file(follow_symlinks=False):
                        yield entry
