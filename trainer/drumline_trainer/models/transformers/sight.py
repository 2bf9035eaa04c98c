"""Check of the tokens that a transformers module attends to, before it is trained.

The library has models that see both sides by default (XLNet, XLM), and a later version may mask in
unknown ways. So two short windows pass through the module. A change of the last token must change
nothing before it, and a change of one document nothing in the next. A model that fails the first
check is refused. One that fails the second gets documents as rows.

Shapes: B batch (1), S sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from drumline_contract.config import ConfigError
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.transformers.module import CausalModule, class_name
from drumline_trainer.sharding.world import tells_lost_peer

_HALF = 6
"""Tokens of each of the two documents of a window."""
_TOLERANCES = {torch.float32: 1e-4}
_LOW_PRECISION = 2e-2
"""Tolerance as a share of the largest logit, for another order of sums."""


@torch.no_grad()
def check_sight(module: CausalModule, *, words: int, device: torch.device) -> None:
    """Raise ConfigError if a module sees later tokens or tokens of other documents. Collective.

    Gathered weights have to be dropped afterwards.

    Args:
        module: module with its weights.
        words: number of words of its vocabulary.
        device: device of the module.
    """
    whole = cast("nn.Module", module)
    tokens_BS = (torch.arange(2 * _HALF, device=device) * 7 + 3).remainder(words).unsqueeze(0)
    first_BS, last_BS = tokens_BS.clone(), tokens_BS.clone()
    first_BS[:, :_HALF] = (first_BS[:, :_HALF] + 1).remainder(words)
    last_BS[:, -1] = (last_BS[:, -1] + 1).remainder(words)
    numbers = np.repeat(np.arange(2, dtype=np.int32), _HALF)[None]
    places = np.tile(np.arange(_HALF, dtype=np.int32), 2)[None]
    documents = Documents.of(numbers, places).to(device)
    whole.eval()
    try:
        sees_later = _differ(lambda each: whole(each)[:, :-1], tokens_BS, last_BS)
    except (RuntimeError, ValueError) as error:
        if not module.replicated or _is_of_the_machine(error):
            raise
        raise ConfigError(
            f"parallelism.tensor: {class_name(module)} does not compute with the parts of its"
            f" weights that its plan (tp_plan) gives a rank ({str(error)[:200]}); use fewer tensor"
            " ranks, or fsdp"
        ) from error
    if module.documents_apart and not sees_later:
        module.documents_apart = not _differ(
            lambda each: whole(each, documents)[:, _HALF:], tokens_BS, first_BS
        )
    whole.train()
    if sees_later:
        raise ConfigError(
            f"config.json: {class_name(module)} sees the tokens that it is to predict; set what"
            " makes it causal there, or take another model"
        )


def _differ(logits_of: Callable[[Tensor], Tensor], tokens_BS: Tensor, changed_BS: Tensor) -> bool:
    left, right = logits_of(tokens_BS), logits_of(changed_BS)
    tolerance = _TOLERANCES.get(left.dtype, _LOW_PRECISION) * left.abs().max()
    return bool((left - right).abs().max() > tolerance)


def _is_of_the_machine(error: RuntimeError | ValueError) -> bool:
    """Return whether a device, memory or a peer failed, which says nothing of the module."""
    kinds = dist.DistError | torch.OutOfMemoryError | torch.AcceleratorError
    lost = isinstance(error, RuntimeError) and tells_lost_peer(error)
    return lost or isinstance(error, kinds)
