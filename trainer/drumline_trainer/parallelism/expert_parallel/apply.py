"""Expert parallelism: the experts of every mixture are shared out along the expert axis.

The ranks of that axis see different tokens, so nothing else changes: all
of them route their own tokens with their own copy of the router, and rows travel to the experts and
back (`expert_dispatch`). An expert's gradient is then that of the tokens of all ranks of the axis
already, and is summed over the ranks that hold the same experts only (`Axis.EXPERT_DATA`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn

from drumline_contract.layout import Axis
from drumline_trainer.models.mixture import MixtureOfExperts
from drumline_trainer.parallelism.expert_parallel.dispatch import RemoteDispatch
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import Cut, named_modules, whole_cut
from drumline_trainer.sharding.world import World


def expert_parallel(model: nn.Module, world: World, cuts: Mapping[str, Cut]) -> dict[str, Cut]:
    """Leave this rank its experts, in place, and say so: all cuts, those of experts refined.

    Args:
        model: a model or stage, on the meta device or not, after tensor parallelism.
        world: an expert axis of one rank changes nothing.
        cuts: what tensor parallelism made.

    Raises:
        ValueError: the experts do not divide by the ranks of the axis.
    """
    group = world.group(Axis.EXPERT)
    refined = dict(cuts)
    if group is None:
        return refined
    for path, mixture in _mixtures(model):
        for name, weights in list(mixture.experts.named_parameters()):
            full_name = f"{path}.experts.{name}"
            cut = refined.get(full_name) or whole_cut(weights, world)
            refined[full_name] = cut = _refined(cut, world)
            start = cut.box.offsets[0]
            mine = weights.detach()[start : start + cut.box.shape[0]].clone()
            mixture.experts.register_parameter(
                name, nn.Parameter(mine, requires_grad=weights.requires_grad)
            )
        mixture.dispatch = RemoteDispatch(group=group)
    return refined


def expert_names(model: nn.Module) -> frozenset[str]:
    """Return the names of the parameters whose gradients are summed over `Axis.EXPERT_DATA`."""
    return frozenset(
        f"{path}.experts.{name}"
        for path, mixture in _mixtures(model)
        for name, _ in mixture.experts.named_parameters()
    )


def _mixtures(model: nn.Module) -> Iterator[tuple[str, MixtureOfExperts]]:
    modules = named_modules(model)
    return ((path, m) for path, m in modules if isinstance(m, MixtureOfExperts))


def _refined(cut: Cut, world: World) -> Cut:
    """Return the part of a cut with this rank's experts, which are its first dimension.

    Raises:
        ValueError: the ranks do not divide the experts.
    """
    ranks, experts = world.size(Axis.EXPERT), cut.box.shape[0]
    if experts % ranks:
        raise ValueError(f"{experts} experts do not divide by {ranks} ranks")
    mine = experts // ranks
    box = Box(
        offsets=(world.index(Axis.EXPERT) * mine, *cut.box.offsets[1:]),
        shape=(mine, *cut.box.shape[1:]),
    )
    return Cut(shape=cut.shape, box=box, copies=cut.copies, copy=cut.copy)
