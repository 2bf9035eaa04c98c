"""The newest event file of TensorBoard in a folder, read as it grows, a bounded part at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
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
        self._path: Path | None = None
        self._offset = 0
        self._step: int | None = None
        self._loss: float | None = None

    def read(self) -> ProgressLine | None:
        """Return step and loss after the newest records, or None if there are none.

        Raises:
            OSError: the folder or its file cannot be read.
        """
        newest = self._newest()
        if newest is None:
            return None
        # The program has started again or opened a new file: its steps begin anew.
        if newest != self._path:
            self._path, self._offset, self._step, self._loss = newest, 0, None, None
        # Report only changes, or an idle program would look as if it trained.
        before = (self._step, self._loss)
        with newest.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            try:
                self._read_records(file.fileno(), size=size)
            except EventFileError:
                self._offset = size  # damaged: what follows cannot be told from it
        if self._step is None or (self._step, self._loss) == before:
            return None
        return ProgressLine(step=self._step, loss=self._loss)

    def _read_records(self, file: int, *, size: int) -> None:
        # Bounded per read. Large records are skipped and do not count.
        end = self._offset + MAX_READ_BYTES
        for _ in range(MAX_READ_RECORDS):
            if self._offset + HEADER_BYTES > size or self._offset >= end:
                return
            header = os.pread(file, HEADER_BYTES, self._offset)
            if len(header) < HEADER_BYTES:
                return
            length = record_length(header)
            following = self._offset + HEADER_BYTES + length + TRAILER_BYTES
            if following > size:
                return  # it is being written
            if length <= MAX_RECORD_BYTES:
                self._note(os.pread(file, length, self._offset + HEADER_BYTES))
            else:
                end += length
            self._offset = following

    def _note(self, data: bytes) -> None:
        event = scalar_event(data)
        if event is None:
            return
        loss = next((event.values[tag] for tag in self._loss_tags if tag in event.values), None)
        if loss is not None:
            self._step, self._loss = event.step, loss
        elif self._loss is None:  # others may count evaluations, say
            self._step = event.step

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
