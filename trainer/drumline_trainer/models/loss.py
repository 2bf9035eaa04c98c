"""What a model is trained on: cross entropy in nats, as a sum, so that parts of a batch add up.

The mean is taken once, over the tokens of the global batch: then no layout has to know how many
tokens another rank saw.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def token_losses_sum(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    """Cross entropy summed over all positions, computed in fp32.

    A classifier's logits of shape B C and targets of shape B are summed over the samples.
    """
    return F.cross_entropy(logits_BSV.flatten(0, -2).float(), targets_BS.flatten(), reduction="sum")
