"""A device plugin that offers GPUs which do not exist, over the kubelet's real gRPC socket.

Allocation, refusal and lost devices are therefore the kubelet's own doing. The devices and their
health are a JSON file, `{"GPU-node-0-0": "Healthy", ...}`; SIGHUP makes the plugin read it again.
The few messages of the kubelet's deviceplugin/v1beta1 API are declared here by field number, so
that no protoc is needed. Run as a script: `device_plugin.py DEVICES.json [RESOURCE]`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

RESOURCE = "nvidia.com/gpu"
_FOLDER = Path("/var/lib/kubelet/device-plugins")

# message -> its fields in order of their numbers; a capital letter names another message, * repeats
_MESSAGES: dict[str, tuple[str, ...]] = {
    "Empty": (),
    "Options": ("bool pre_start_required", "bool preferred_allocation"),
    "RegisterRequest": ("string version", "string endpoint", "string resource", "Options options"),
    "Device": ("string id", "string health"),
    "DeviceList": ("*Device devices",),
    "ContainerRequest": ("*string device_ids",),
    "AllocateRequest": ("*ContainerRequest containers",),
    "Variable": ("string key", "string value"),  # an entry of a protobuf map
    "ContainerResponse": ("*Variable variables",),
    "AllocateResponse": ("*ContainerResponse containers",),
}


def message_types(
    messages: Mapping[str, Sequence[str]] = _MESSAGES, *, package: str = "v1beta1"
) -> dict[str, Any]:
    """The message classes, made from a table like the one above."""
    field_type = descriptor_pb2.FieldDescriptorProto
    scalars = {"string": field_type.TYPE_STRING, "bool": field_type.TYPE_BOOL}
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for number, declaration in enumerate(fields, start=1):
            kind, field_name = declaration.removeprefix("*").split()
            field = message.field.add(name=field_name, number=number)
            repeated = declaration.startswith("*")
            field.label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            field.type = scalars.get(kind, field_type.TYPE_MESSAGE)
            if kind not in scalars:
                field.type_name = f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


class DevicePlugin:
    """The server the kubelet calls; the file behind it may change at any time."""

    def __init__(self, devices_file: Path) -> None:
        self._file = devices_file
        self._changed = threading.Condition()
        self._version = 0
        self._open = True
        self._types = message_types()

    def reload(self) -> None:
        """Tell every kubelet that listens what the file says now."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def close(self) -> None:
        """End every answer that is still being given."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def options(self, _request: Any, _context: Any) -> Any:
        """GetDevicePluginOptions: neither pre-start calls nor preferred allocations."""
        return self._types["Options"]()

    def list_and_watch(self, _request: Any, _context: Any) -> Iterator[Any]:
        """ListAndWatch: all devices with their health, again after each change."""
        seen = -1
        while True:
            with self._changed:
                self._changed.wait_for(lambda seen=seen: not self._open or self._version != seen)
                if not self._open:
                    return
                seen = self._version
            health = json.loads(self._file.read_text())
            device = self._types["Device"]
            yield self._types["DeviceList"](
                devices=[device(id=each, health=state) for each, state in health.items()]
            )

    def allocate(self, request: Any, _context: Any) -> Any:
        """Allocate: the variables that tell a container its devices."""
        answer = self._types["AllocateResponse"]()
        for container in request.containers:
            variables = answer.containers.add().variables
            variables.add(key="NVIDIA_VISIBLE_DEVICES", value=",".join(container.device_ids))
            variables.add(key="DRUMLINE_FAKE_GPUS", value=str(len(container.device_ids)))
        return answer

    def handler(self) -> grpc.GenericRpcHandler:
        """The gRPC service of these methods."""
        types = self._types

        def unary(call: Any, request: str) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(
                call,
                request_deserializer=types[request].FromString,
                response_serializer=encode,
            )

        watch = grpc.unary_stream_rpc_method_handler(
            self.list_and_watch,
            request_deserializer=types["Empty"].FromString,
            response_serializer=encode,
        )
        return grpc.method_handlers_generic_handler(
            "v1beta1.DevicePlugin",
            {
                "GetDevicePluginOptions": unary(self.options, "Empty"),
                "ListAndWatch": watch,
                "Allocate": unary(self.allocate, "AllocateRequest"),
            },
        )


def endpoint_of(resource: str) -> str:
    """The name of the plugin's socket: there may be a plugin for each resource."""
    return f"drumline-{resource.replace('/', '-')}.sock"


def register(folder: Path, resource: str) -> None:
    """Tell the kubelet of this node where the plugin listens."""
    types = message_types()
    with grpc.insecure_channel(f"unix://{folder / 'kubelet.sock'}") as channel:
        call = channel.unary_unary(
            "/v1beta1.Registration/Register",
            request_serializer=encode,
            response_deserializer=types["Empty"].FromString,
        )
        call(
            types["RegisterRequest"](
                version="v1beta1", endpoint=endpoint_of(resource), resource=resource
            ),
            wait_for_ready=True,
            timeout=60,
        )


def encode(message: Any) -> bytes:
    """A message of `message_types` as bytes."""
    return message.SerializeToString()


def main(devices_file: Path, resource: str = RESOURCE) -> None:
    """Serve until killed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # before gRPC's threads exist
    plugin = DevicePlugin(devices_file)
    while not (_FOLDER / "kubelet.sock").exists():
        time.sleep(0.1)
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[plugin.handler()])
    server.add_insecure_port(f"unix://{_FOLDER / endpoint_of(resource)}")
    server.start()
    register(_FOLDER, resource)
    print(f"registered {resource} from {devices_file}, pid {os.getpid()}", flush=True)
    while True:
        signal.sigwait({signal.SIGHUP})
        plugin.reload()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
