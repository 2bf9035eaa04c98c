"""The stand-in's words are those of the installed NCCL and torch."""

from __future__ import annotations

import ctypes
import mmap
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from drumline_contract import ExitCode
from drumline_trainer.rank import exit_code_of
from tests.gloo.nccl.errors import ABORTED, ECC, NcclResult

pytestmark = pytest.mark.extended(keep=3)

TORCH = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
NEAR = 1 << 16
"""Bytes: words of one file are stored beside each other."""


def nccl_library() -> Path | None:
    """Of the Python package that comes with torch."""
    package = find_spec("nvidia.nccl")
    folders = [] if package is None else list(package.submodule_search_locations or [])
    return next((path for folder in folders for path in Path(folder).glob("lib/libnccl.so*")), None)


@pytest.mark.parametrize("result", NcclResult)
def test_nccls_own_words(result: NcclResult) -> None:
    library = nccl_library()
    if library is None:
        pytest.skip("this torch comes without NCCL")
    words = ctypes.CDLL(str(library)).ncclGetErrorString
    words.restype = ctypes.c_char_p
    assert words(result.number).decode() == result.words


def test_torchs_words() -> None:
    if not TORCH.exists():
        pytest.skip("this torch comes without CUDA")
    with TORCH.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        at = whole.find(ABORTED.encode())
        assert at >= 0
        around = whole[max(0, at - NEAR) : at + NEAR]
    assert [r.name for r in NcclResult if r.explanation.encode() not in around] == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NcclResult.REMOTE_ERROR, ExitCode.PEER_LOST),
        (NcclResult.SYSTEM_ERROR, ExitCode.PEER_LOST),
        (NcclResult.INTERNAL_ERROR, ExitCode.PEER_LOST),
        (NcclResult.UNHANDLED_CUDA_ERROR, ExitCode.APPLICATION),
    ],
)
def test_what_ends_a_rank_that_was_not_told_to_leave(error: NcclResult, code: ExitCode) -> None:
    """A peer that is lost is not this rank's fault; of CUDA's errors the agent reads the words."""
    for text in (error.text(last_error=ECC), error.text_of_call()):
        assert exit_code_of(torch.distributed.DistBackendError(text)) is code


@pytest.mark.parametrize(
    "text",
    [
        f"{ABORTED}3. ",
        "NCCL communicator was aborted after a previous error",
        "NCCL communicator encountered error set by ProcessGroupNCCL: a peer timed out",
    ],
)
def test_an_abort_that_nobody_has_ordered_is_a_lost_peer(text: str) -> None:
    assert exit_code_of(RuntimeError(text)) is ExitCode.PEER_LOST
