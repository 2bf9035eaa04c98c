"""Specs of pools and queues in an order that no name decides."""

from __future__ import annotations

from msgspec import structs

from drumline.controller.informers.specs import SpecCache
from drumline_api.gpupool import GpuPoolSpec
from tests.unit.controller.views import pool_view


def test_the_oldest_object_comes_first_whatever_its_name_and_when_it_is_seen() -> None:
    cache = SpecCache(GpuPoolSpec)
    older = structs.replace(pool_view("z"), creation_time="2026-01-01T00:00:00Z")
    twin = structs.replace(pool_view("b"), creation_time="2026-01-01T00:00:00Z")
    newer = structs.replace(pool_view("a"), creation_time="2026-01-02T00:00:00Z")
    for view in (newer, older, twin):
        cache.on_object(None, view)
    assert list(cache.by_name) == ["b", "z", "a"]
    cache.on_object(older, structs.replace(older, spec={"nodeSelector": {"gpu": "a100"}}))
    assert list(cache.by_name) == ["b", "z", "a"]
    cache.on_object(twin, None)
    cache.on_object(None, structs.replace(twin, creation_time="2026-01-03T00:00:00Z"))
    assert list(cache.by_name) == ["z", "a", "b"]
