"""The tensors of a ViT's folder where a run's model is not wholly that of the folder.

A run may name other classes than the folder, which begins the classifier anew, and take images of
another size, for which the position embeddings are interpolated.
"""

from __future__ import annotations

import math
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

HEAD: Final = ("output.weight", "output.bias")
"""Our names of the classifier's weights."""


def with_positions_of(stored_SD: Tensor, *, positions: int) -> Tensor:
    """Position embeddings for another number of patches, as `interpolate_pos_encoding` gives them.

    The first is the class token's and stays; the others are a square of patches, bicubic between
    them. https://github.com/huggingface/transformers/blob/main/src/transformers/models/vit/modeling_vit.py

    Shapes: S positions, D hidden.
    """
    if len(stored_SD) == positions:
        return stored_SD
    side_there, side_here = math.isqrt(len(stored_SD) - 1), math.isqrt(positions - 1)
    patches_1DHW = stored_SD[1:].float().T.reshape(1, -1, side_there, side_there)
    resized_1DHW = F.interpolate(
        patches_1DHW, size=(side_here, side_here), mode="bicubic", align_corners=False
    )
    return torch.cat((stored_SD[:1].float(), resized_1DHW.flatten(2)[0].T))
