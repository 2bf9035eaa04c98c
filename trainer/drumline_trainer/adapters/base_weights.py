"""The weights that a run began with by name, each read or drawn at every access.

So what merges or exports them holds one of them at a time, whatever the size of the model.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from drumline_contract.config import Family, TrainerConfig
from drumline_contract.shapes.hugging_face import model_folder
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import OpenedWeights, opened_weights
from drumline_trainer.models.initialize import initialize_slices
from drumline_trainer.models.transformers.weights import whole_module
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice, named_weights


@contextmanager
def opened_base(config: TrainerConfig) -> Generator[Mapping[str, Tensor]]:
    """Open the base of a run. That of a module of transformers is in memory as a whole.

    Raises:
        ConfigError: the folder is not of this model.
        StoreError: its storage does not answer.
    """
    # transformers builds its modules as a whole, so their weights cannot be read one by one.
    if config.model.family is Family.TRANSFORMERS:
        whole = whole_module(config)
        yield dict(whole.named_parameters()) | dict(whole.named_buffers())
        return
    if config.model_from is None:
        yield BaseWeights(config, folder=None)
        return
    with opened_weights(model_folder(config.model_from), config=config.model) as folder:
        yield BaseWeights(config, folder=folder)


class BaseWeights(Mapping[str, Tensor]):
    """Base weights of the whole model by name, in fp32."""

    def __init__(self, config: TrainerConfig, *, folder: OpenedWeights | None) -> None:
        """Read from an open folder; None: random weights."""
        self._config, self._folder = config, folder
        # A model on meta gives names and shapes, and costs no memory.
        model = build_on_meta(config.model)
        self._shapes = {name: tuple(weight.shape) for name, weight in named_weights(model)}

    def __getitem__(self, name: str) -> Tensor:
        """Return the whole weight in fp32."""
        shape = self._shapes[name]
        everything = Box(offsets=(0,) * len(shape), shape=shape)
        whole = TensorSlice(name=name, shape=shape, box=everything, tensor=torch.empty(shape))
        # A weight that the folder lacks is drawn, as the run did at its start.
        if self._folder is None or name in self._folder.absent:
            initialize_slices([whole], config=self._config.model, seed=self._config.seed)
        else:
            self._folder.fill([whole])
        return whole.tensor

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._shapes)

    def __len__(self) -> int:
        """Return the number of weights."""
        return len(self._shapes)
