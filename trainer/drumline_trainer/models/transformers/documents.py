"""Documents that share a window, in models that know nothing of ours.

Models whose every layer attends by `transformers.masking_utils` see where documents begin from
positions that go back to 0, and mask by that. All others (state spaces, convolutions, linear
attention, masks of their own) would carry one document into the next. For these each document is
a row of its own, filled up at its end: a causal model's earlier tokens know nothing of the filling.

    window  a a a b b | c c c c c    ->  a a a 0 0     and logits go back to their places
                                         b b 0 0 0
                                         c c c c c

Shapes: B batch, S sequence, R documents, L tokens of the longest, V vocabulary.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drumline_trainer.models.documents import Documents

_MASKS = frozenset(
    {
        "create_causal_mask",
        "create_sliding_window_causal_mask",
        "create_chunked_causal_mask",
        "create_masks_for_generate",
    }
)
_POSITIONS = "position_ids"
_OTHER_MIXERS = ("linear_attention", "mamba", "conv", "recurrent", "hybrid", "compressed")


def sees_documents_apart(module: nn.Module) -> bool:
    """Return whether a model masks by documents in all layers if positions restart at 0.

    The result is true only for known mask functions. Tests compare every model of the library.
    """
    if getattr(module, "_is_stateful", False):
        return False
    if any(isinstance(each, nn.Conv1d | nn.Conv2d | nn.RNNBase) for each in module.modules()):
        return False
    config: Any = module.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    kinds = getattr(text, "layer_types", None) or ()
    if any(word in str(kind) for kind in kinds for word in _OTHER_MIXERS):
        return False
    made = [_masks_by_positions(kind) for kind in {type(each) for each in module.modules()}]
    return True in made and False not in made


def _masks_by_positions(kind: type) -> bool | None:
    """Return whether a class's forward pass gives positions to all its masks.

    None: it makes none.
    """
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(kind.forward)))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType] - of modules
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError):
        return None
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    named = _MASKS | _aliases(tree)
    makers = [call for call in calls if getattr(call.func, "id", "") in named]
    if not makers:
        return None
    shared = any(_names_positions(each) for each in ast.walk(tree) if isinstance(each, ast.Dict))
    return all(
        any(word.arg == _POSITIONS or (word.arg is None and shared) for word in call.keywords)
        for call in makers
    )


def _aliases(tree: ast.AST) -> set[str]:
    """Return names that stand for a mask function, as in `f = create_causal_mask if ... else`."""
    assigned = [each for each in ast.walk(tree) if isinstance(each, ast.Assign)]
    return {
        target.id
        for each in assigned
        if isinstance(each.value, ast.Name | ast.IfExp)
        and any(isinstance(part, ast.Name) and part.id in _MASKS for part in ast.walk(each.value))
        and not any(isinstance(part, ast.Call) for part in ast.walk(each.value))
        for target in each.targets
        if isinstance(target, ast.Name)
    }


def _names_positions(shared: ast.Dict) -> bool:
    return any(isinstance(key, ast.Constant) and key.value == _POSITIONS for key in shared.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentRows:
    """Place of each token of the windows among rows, one row for each document."""

    places: Tensor
    """Shape B S: index into the flattened rows, int64, where the model is."""
    count: int
    longest: int

    @classmethod
    def of(cls, documents: Documents) -> DocumentRows:
        """Compute the rows of a micro-batch."""
        begins = np.diff(documents.ids, axis=1, prepend=documents.ids[:, :1] - 1) != 0
        numbers_BS = begins.reshape(-1).cumsum().reshape(begins.shape) - 1
        positions_BS = documents.since_begin
        longest = documents.longest
        numbers = torch.from_numpy(numbers_BS).to(positions_BS.device)  # pyright: ignore[reportUnknownMemberType] - untyped in torch
        return cls(
            places=numbers * longest + positions_BS,
            count=int(numbers_BS.max()) + 1,
            longest=longest,
        )

    def rows(self, inputs_BS: Tensor) -> Tensor:
        """Lay documents out as rows, [documents, longest]; 0 follows a document's end."""
        rows = inputs_BS.new_zeros(self.count * self.longest)
        rows[self.places.flatten()] = inputs_BS.flatten()
        return rows.view(self.count, self.longest)

    def windows(self, logits_RLV: Tensor) -> Tensor:
        """Lay logits [documents, longest, vocabulary] back as [batch, sequence, vocabulary]."""
        flat = logits_RLV.flatten(0, 1).index_select(0, self.places.flatten())
        return flat.view(*self.places.shape, -1)
