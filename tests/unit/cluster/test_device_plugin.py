"""The plugin is asked over a real gRPC socket, as the kubelet asks it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from tools.cluster.device_plugin import DevicePlugin, encode, message_types

TYPES = message_types()


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    file = tmp_path / "devices.json"
    file.write_text(json.dumps({"GPU-0": "Healthy", "GPU-1": "Healthy"}))
    return file


@pytest.fixture
def plugin(devices: Path) -> DevicePlugin:
    return DevicePlugin(devices)


@pytest.fixture
def channel(plugin: DevicePlugin, tmp_path: Path) -> Iterator[grpc.Channel]:
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[plugin.handler()])
    server.add_insecure_port(f"unix://{tmp_path / 'plugin.sock'}")
    server.start()
    with grpc.insecure_channel(f"unix://{tmp_path / 'plugin.sock'}") as channel:
        yield channel
    plugin.close()
    server.stop(grace=None).wait()


def watch(channel: grpc.Channel) -> Iterator[Any]:
    call = channel.unary_stream(
        "/v1beta1.DevicePlugin/ListAndWatch",
        request_serializer=encode,
        response_deserializer=TYPES["DeviceList"].FromString,
    )
    return call(TYPES["Empty"]())


def health(answer: Any) -> dict[str, str]:
    return {device.id: device.health for device in answer.devices}


def test_a_device_that_breaks_is_told_to_who_watches(
    channel: grpc.Channel, plugin: DevicePlugin, devices: Path
) -> None:
    answers = watch(channel)
    assert health(next(answers)) == {"GPU-0": "Healthy", "GPU-1": "Healthy"}

    devices.write_text(json.dumps({"GPU-0": "Healthy", "GPU-1": "Unhealthy"}))
    plugin.reload()

    assert health(next(answers)) == {"GPU-0": "Healthy", "GPU-1": "Unhealthy"}


def test_a_container_learns_its_devices_from_its_environment(channel: grpc.Channel) -> None:
    allocate = channel.unary_unary(
        "/v1beta1.DevicePlugin/Allocate",
        request_serializer=encode,
        response_deserializer=TYPES["AllocateResponse"].FromString,
    )
    request = TYPES["AllocateRequest"](
        containers=[TYPES["ContainerRequest"](device_ids=["GPU-1", "GPU-0"])]
    )

    (container,) = allocate(request).containers

    assert {each.key: each.value for each in container.variables} == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-0",
        "DRUMLINE_FAKE_GPUS": "2",
    }
