"""Two ranks that save to a bucket are killed, or a request or a reply is lost, at every request.

Real processes, a real S3 server and a proxy in between that strikes at the n-th request that
changes anything. What was acknowledged is never lost, what is committed is whole, and the next
claim leaves nothing else behind. BUCKET_SEED picks a slice; all: `make test-all WHAT=buckets`.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.checkpoint.bucket.index import INDEX_FILE, Index
from tests.gloo.configs import small
from tests.gloo.gang import Gang, GangStarter
from tests.gloo.jobs import opened, restore_once, training_state
from tests.object_store import BUCKET, ObjectStore
from tests.seeds import seed_of
from tests.store_proxy import Fate, Proxy, Request, proxy_to

pytestmark = pytest.mark.extended(keep=1)

RANKS = 2
STEPS, KEEP = (1, 2, 3), 2
REQUESTS = 33
"""That change anything: a claim of three, three saves of nine, and what retention removes."""
EVERY_DAY = 1
_LAST_SECONDS = 120.0
"""That a rank whose peer was killed may live on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """What befalls a request, and who is killed while it is on its way."""

    fate: Fate
    ranks: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """For people."""
        killed = " and ".join(f"rank {rank}" for rank in self.ranks)
        fate = self.fate.name.lower().replace("_", " ")
        return f"{killed} killed, {fate}" if killed else fate


STRIKES = (
    *(
        Strike(fate=fate, ranks=ranks)
        for fate in (Fate.LOST, Fate.REPLY_LOST)
        for ranks in ((0, 1), (0,), (1,))
    ),
    *(Strike(fate=fate) for fate in (Fate.LOST, Fate.REPLY_LOST, Fate.BUSY)),
)


def chosen() -> list[tuple[int, Strike]]:
    """The seeded slice, or as many as the environment says."""
    cells = list(itertools.product(range(REQUESTS), STRIKES))
    count = int(os.environ.get("DRUMLINE_BUCKET_KILLS", EVERY_DAY))
    return random.Random(seed_of("BUCKET_SEED")).sample(cells, min(count, len(cells)))


def save_and_tell(
    placement: Placement, pipe: Connection, keys: Mapping[str, str], config: TrainerConfig
) -> None:
    """Save all steps; send each once it is acknowledged."""
    os.environ.update(keys)
    slices = training_state(placement, config, seed=0)
    checkpoints = opened(placement, keep=KEEP)
    for step in STEPS:
        for local in slices:
            local.tensor.fill_(float(step))
        pipe.send(checkpoints.save(step=step, slices=slices, trainer={}).step)


def restore_with(
    placement: Placement, pipe: Connection, keys: Mapping[str, str], config: TrainerConfig
) -> None:
    """`restore_once` in a process that finds the store."""
    os.environ.update(keys)
    restore_once(placement, pipe, config)


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[Proxy]:
    with proxy_to(object_store.port) as proxy:
        yield proxy


def acknowledged(gang: Gang) -> int:
    """The newest step that a rank was told is safe, once all have ended."""
    newest = 0
    for process, pipe in zip(gang.processes, gang.pipes, strict=True):
        process.join(_LAST_SECONDS)
        assert not process.is_alive()
        try:
            while True:
                newest = max(newest, pipe.recv())
        except (EOFError, ConnectionResetError):
            pass
    return newest


def strike_at(number: int, strike: Strike, gang: Gang, proxy: Proxy) -> None:
    """Let it befall the request with that number among those that change anything."""
    counted = itertools.count()

    def decide(request: Request) -> Fate:
        if not request.writes or next(counted) != number:
            return Fate.DONE
        if strike.ranks:
            gang.kill(*strike.ranks)
        return strike.fate

    proxy.fate = decide


def test_there_are_so_many_requests(
    gangs: GangStarter, object_store: ObjectStore, proxy: Proxy, tmp_path: Path
) -> None:
    url = f"s3://{BUCKET}/{tmp_path.parent.name}/{tmp_path.name}"
    keys = object_store.environment(port=proxy.port)
    config = small(tmp_path)
    gangs.run(save_and_tell, keys, config, world_size=RANKS, checkpoint_bucket=url)
    assert sum(request.writes for request in proxy.seen) == REQUESTS


@pytest.mark.parametrize(
    ("number", "strike"),
    chosen(),
    ids=lambda value: value.name if isinstance(value, Strike) else str(value),
)
def test_what_is_committed_is_whole_and_what_was_acknowledged_is_there(  # noqa: PLR0917 - fixtures
    gangs: GangStarter,
    object_store: ObjectStore,
    proxy: Proxy,
    tmp_path: Path,
    number: int,
    strike: Strike,
) -> None:
    prefix = f"{tmp_path.parent.name}/{tmp_path.name}"
    where = {"world_size": RANKS, "checkpoint_bucket": f"s3://{BUCKET}/{prefix}"}
    keys, config = object_store.environment(port=proxy.port), small(tmp_path)
    proxy.lock.acquire()  # no request passes before it is known what befalls it
    try:
        with gangs.gang(save_and_tell, keys, config, **where) as gang:
            strike_at(number, strike, gang, proxy)
            proxy.lock.release()
            safe = acknowledged(gang)
    finally:
        proxy.fate = lambda _: Fate.DONE
    if not strike.ranks:
        assert safe == STEPS[-1]
    results = gangs.run(restore_with, keys, config, **where)
    index = Index.parse(object_store.objects(prefix)[INDEX_FILE].read_bytes(), where=prefix)
    newest = index.steps[0] if index.steps else None
    assert (newest or 0) >= safe
    expected = (newest, {float(newest)}) if newest else None
    for step, values in results:
        assert step == newest
        assert expected is None or (step, values) == expected
    places = {name.split("/")[0] for name in object_store.objects(prefix) if "/" in name}
    assert {place for place in places if place.startswith("step-")} == set(index.places.values())
