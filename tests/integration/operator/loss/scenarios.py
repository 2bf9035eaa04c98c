"""The lives of jobs that operators are ended in: admit, start, recover, preempt, resize, ...

Each waits for what it brings about before it goes on, so that its writes come in one order, and
ends in a state that stays.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from drumline_contract import Progress
from tests.integration.operator.conftest import HIGH
from tests.integration.operator.loss.corner import Corner

SAVED = Progress(step=30, total_steps=100, checkpoint_step=30, checkpoint_digest="digest-30")
TRAINER: dict[str, Any] = {
    "trainer": {"globalBatchSize": 96},
    "checkpoint": {"claimName": "checkpoints"},
}
START_SECONDS = 3600
BACKOFF_SECONDS = 600
Life = Callable[[Corner], Awaitable[None]]


async def finish(corner: Corner, *, nodes: int, **spec: Any) -> None:
    """Admitted, started, done."""
    await corner.submit("life", nodes=nodes, **spec)
    await corner.until_running("life", 1)
    await corner.end("life")
    await corner.until("life", phase="Succeeded")


async def lose_pod(corner: Corner, *, index: int = 1, **spec: Any) -> None:
    """A pod vanishes; it, or its gang, is replaced."""
    await corner.submit("life", nodes=3, **spec)
    await corner.until_running("life", 1)
    await corner.lose(f"life-{index}-g1")
    await corner.until_running("life", 2)


async def lose_node(corner: Corner, **spec: Any) -> None:
    """A node goes without a word; its member moves to the one that is free."""
    await corner.submit("life", nodes=3, **spec)
    await corner.until_running("life", 1)
    gone = corner.node_of("life-1-g1")
    await corner.lose_node(gone)
    await corner.until_running("life", 2)


async def crash(corner: Corner, *, restarts: int, **spec: Any) -> None:
    """A program fails until nothing is left of its budget."""
    recovery = {"maxRestarts": restarts}
    await corner.submit("life", nodes=2, recovery=recovery, **spec)
    for generation in range(1, restarts + 2):
        await corner.until_running("life", generation)
        await corner.end("life", code=1, only=f"-1-g{generation}")
    await corner.until("life", phase="Failed")


async def refused(corner: Corner, **spec: Any) -> None:
    """A kubelet refuses a pod of the gang."""
    corner.refusing.add("life-1-g1")
    await corner.submit("life", nodes=2, **spec)
    await corner.mirror.wait(lambda: not corner.refusing)
    await corner.until("life", phase="Running")


async def suspend(corner: Corner, **spec: Any) -> None:
    await corner.submit("life", nodes=2, **spec)
    await corner.until_running("life", 1)
    await corner.change("life", suspend=True)
    await corner.until("life", phase="Suspended")
    await corner.mirror.wait(lambda: not corner.pods("life"), what=lambda: [*corner.pods("life")])
    await corner.change("life", suspend=False)
    await corner.until_running("life", 2)


async def suspend_starting(corner: Corner, **spec: Any) -> None:
    """Suspended while its pods wait for their kubelets."""
    corner.dead.update(corner.nodes)
    await corner.submit("life", nodes=3, **spec)
    await corner.mirror.wait(lambda: len(corner.pods("life")) == 3)
    await corner.change("life", suspend=True)
    await corner.until("life", phase="Suspended")
    corner.revive()
    await corner.mirror.wait(lambda: not corner.pods("life"), what=lambda: [*corner.pods("life")])
    await corner.change("life", suspend=False)
    await corner.until_running("life", 2)


async def start_late(corner: Corner, **spec: Any) -> None:
    """The pods do not start in time: the gang gives its GPUs back, and waits."""
    corner.dead.update(corner.nodes)
    await corner.submit("life", nodes=2, startDeadlineSeconds=START_SECONDS, **spec)
    await corner.mirror.wait(lambda: len(corner.pods("life")) == 2)
    for node in corner.nodes:
        await corner.taint(node, "example.com/full")
    corner.skip(START_SECONDS)
    await corner.mirror.wait(
        lambda: all("deletionTimestamp" in pod["metadata"] for pod in corner.pods("life").values())
    )
    corner.revive()
    await corner.until("life", phase="Pending")
    await corner.mirror.wait(lambda: not corner.pods("life"), what=lambda: [*corner.pods("life")])
    corner.skip(BACKOFF_SECONDS)  # an operator that ends forgets the backoff
    await corner.until("life", phase="Pending", reason="NodesUnavailable")


async def delete_running(corner: Corner, **spec: Any) -> None:
    await corner.submit("life", nodes=3, **spec)
    await corner.until_running("life", 1)
    await corner.delete("life")
    await corner.empty()


async def delete_starting(corner: Corner, **spec: Any) -> None:
    """Deleted while its pods wait for their kubelets."""
    corner.dead.update(corner.nodes)
    await corner.submit("life", nodes=3, **spec)
    await corner.mirror.wait(lambda: len(corner.pods("life")) == 3)
    corner.revive()
    await corner.delete("life")
    await corner.empty()


async def time_to_live(corner: Corner, **spec: Any) -> None:
    """The operator deletes the job when it is done."""
    await corner.submit("life", nodes=2, ttlSecondsAfterFinished=0, **spec)
    await corner.until_running("life", 1)
    await corner.end("life")
    await corner.empty()


async def give_way(corner: Corner, *, back: bool, **spec: Any) -> None:
    """A gang saves and leaves for a more important one, and comes back when that is done."""
    corner.saves = SAVED
    await corner.submit("low", nodes=4, **spec)
    await corner.until_running("low", 1)
    await corner.submit("high", nodes=2, priorityClassName=HIGH, **TRAINER)
    await corner.until_running("high", 1)
    await corner.until("low", phase="Pending")
    if back:
        await corner.end("high")
        await corner.until("high", phase="Succeeded")
        await corner.until_running("low", 2)
    else:  # it says for a while that it was preempted, and then what it waits for
        await corner.until("low", phase="Pending", reason="QuotaExhausted")


async def give_up_members(corner: Corner) -> None:
    """An elastic gang makes room for a more important one, and grows when that is done."""
    corner.saves = SAVED
    await corner.submit("low", nodes=4, minNodes=2, **TRAINER)
    await corner.until_running("low", 1)
    await corner.submit("high", nodes=2, priorityClassName=HIGH, **TRAINER)
    await corner.until_running("high", 1)
    await corner.until_running("low", 2)
    await corner.end("high")
    await corner.until("high", phase="Succeeded")
    await corner.until_running("low", 3)


async def withdraw(corner: Corner) -> None:
    """The more important gang goes before the other has saved."""
    await corner.submit("low", nodes=4, **TRAINER)
    await corner.until_running("low", 1)
    await corner.submit("high", nodes=2, priorityClassName=HIGH, **TRAINER)
    gang = corner.gang("low")
    await corner.mirror.wait(lambda: "disruption" in corner.status("low"))
    await gang.noticed()
    await corner.delete("high")
    await corner.mirror.wait(lambda: "disruption" not in corner.status("low"))
    await gang.noticed(withdraw=True)


async def drain(corner: Corner) -> None:
    """A node announces its end: the gang saves, and its member there moves."""
    corner.saves = SAVED
    await corner.submit("life", nodes=3, **TRAINER)
    await corner.until_running("life", 1)
    node = corner.node_of("life-1-g1")
    await corner.taint(node, "aws-node-termination-handler/spot-itn")
    await corner.until_running("life", 2)


async def resize(corner: Corner, *, grow: bool) -> None:
    """An elastic gang goes on without a node, and grows when there is room again."""
    corner.saves = SAVED
    await corner.submit("life", nodes=4, minNodes=2, **TRAINER)
    await corner.until_running("life", 1)
    node = corner.node_of("life-2-g1")
    await corner.lose_node(node)
    await corner.until_running("life", 2)
    if grow:
        await corner.add_node(node)
        await corner.until_running("life", 3)
    else:
        await corner.end("life")
        await corner.until("life", phase="Succeeded")


async def wait_for_room(corner: Corner) -> None:
    """Two gangs that do not fit together, one after the other."""
    await corner.submit("first", nodes=3)
    await corner.until_running("first", 1)
    await corner.submit("second", nodes=2)
    await corner.until("second", phase="Pending")
    await corner.end("first")
    await corner.until("first", phase="Succeeded")
    await corner.until_running("second", 1)


async def group(corner: Corner) -> None:
    """Two jobs that start together or not at all."""
    both = {"group": {"name": "pair", "jobs": 2}}
    await corner.submit("actor", nodes=1, **both)
    await corner.submit("learner", nodes=2, **both)
    await corner.until_running("actor", 1)
    await corner.until_running("learner", 1)


_LIVES: dict[str, Life] = {
    "finish: pod alone": partial(finish, nodes=1),
    "finish: template of 4": partial(finish, nodes=4),
    "finish: trainer alone": partial(finish, nodes=1, **TRAINER),
    "recover: leader of a trainer": partial(lose_pod, index=0, **TRAINER),
    "preempt: trainer": partial(give_way, back=False, **TRAINER),
    "preempt: trainer and back": partial(give_way, back=True, **TRAINER),
    "preempt: template and back": partial(give_way, back=True),
    "preempt: withdrawn": withdraw,
    "drain": drain,
    "resize: smaller": partial(resize, grow=False),
    "resize: smaller and larger": partial(resize, grow=True),
    "resize: for another": give_up_members,
    "admit: when there is room": wait_for_room,
    "admit: a group": group,
}
_OF_BOTH: dict[str, Callable[..., Awaitable[None]]] = {
    "finish": partial(finish, nodes=2),
    "start: too late": start_late,
    "start: refused by a kubelet": refused,
    "recover: pod": lose_pod,
    "recover: node": lose_node,
    "recover: no budget left": partial(crash, restarts=1),
    "suspend": suspend,
    "suspend: while it starts": suspend_starting,
    "delete": delete_running,
    "delete: while it starts": delete_starting,
    "delete: by its time to live": time_to_live,
}
LIVES: dict[str, Life] = {
    **_LIVES,
    **{f"{name} (template)": life for name, life in _OF_BOTH.items()},
    **{f"{name} (trainer)": partial(life, **TRAINER) for name, life in _OF_BOTH.items()},
}
LIVES_IN_SAMPLE = 16


def sampled_lives(seed: int) -> list[str]:
    """So many that each is observed once, and much is done to it."""
    return random.Random(seed).sample(sorted(LIVES), LIVES_IN_SAMPLE)
