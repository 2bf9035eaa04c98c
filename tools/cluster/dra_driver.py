"""A DRA driver of GPUs which do not exist, over the kubelet's real gRPC sockets.

The kubelet finds it in its folder of registrations and asks it to prepare the claims of a pod
before the pod's containers start, and to undo that when the pod is gone. Both are written to a log,
a line each: `prepared UID`, `unprepared UID`. The containers get nothing for it. The ResourceSlices
are the caller's. Run as a script: `dra_driver.py DRIVER LOG`.
"""

from __future__ import annotations

import signal
import sys
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

sys.path.insert(0, str(Path(__file__).parents[2]))  # as a script it has only its own folder

from tools.cluster.device_plugin import encode, message_types

_KUBELET = Path("/var/lib/kubelet")
_REGISTRATION = {
    "InfoRequest": (),
    "PluginInfo": ("string type", "string name", "string endpoint", "*string supported_versions"),
    "RegistrationStatus": ("bool plugin_registered", "string error"),
    "RegistrationStatusResponse": (),
}
_DRA = {
    "Claim": ("string namespace", "string uid", "string name"),
    "Request": ("*Claim claims",),
    "Nothing": (),
    "Entry": ("string key", "Nothing value"),  # an entry of a protobuf map
    "Response": ("*Entry claims",),
}
"""Requests and responses of both calls have the same shape where no device is passed on."""
_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


class Driver:
    """Both services.

    Args:
        name: of the driver.
        endpoint: where the kubelet calls it.
        log: what it did.
    """

    def __init__(self, name: str, *, endpoint: Path, log: Path) -> None:
        self._name = name
        self._endpoint = endpoint
        self._log = log
        self._registration = message_types(_REGISTRATION, package="pluginregistration")
        self._dra = message_types(_DRA, package="dra")

    def info(self, _request: Any, _context: Any) -> Any:
        """GetInfo: what it is, and where."""
        return self._registration["PluginInfo"](
            type="DRAPlugin",
            name=self._name,
            endpoint=str(self._endpoint),
            supported_versions=["v1.DRAPlugin"],
        )

    def registered(self, request: Any, _context: Any) -> Any:
        """NotifyRegistrationStatus: what the kubelet made of it."""
        self._say(f"registered {request.plugin_registered} {request.error}".strip())
        return self._registration["RegistrationStatusResponse"]()

    def prepare(self, request: Any, _context: Any) -> Any:
        """NodePrepareResources."""
        return self._answer("prepared", request)

    def unprepare(self, request: Any, _context: Any) -> Any:
        """NodeUnprepareResources."""
        return self._answer("unprepared", request)

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """The gRPC services of these methods."""

        def unary(call: Any, request: Any) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(
                call, request_deserializer=request.FromString, response_serializer=encode
            )

        registration, claims = self._registration, self._dra["Request"]
        return [
            grpc.method_handlers_generic_handler(
                "pluginregistration.Registration",
                {
                    "GetInfo": unary(self.info, registration["InfoRequest"]),
                    "NotifyRegistrationStatus": unary(
                        self.registered, registration["RegistrationStatus"]
                    ),
                },
            ),
            grpc.method_handlers_generic_handler(
                _SERVICE,
                {
                    "NodePrepareResources": unary(self.prepare, claims),
                    "NodeUnprepareResources": unary(self.unprepare, claims),
                },
            ),
        ]

    def _answer(self, deed: str, request: Any) -> Any:
        answer = self._dra["Response"]()
        for claim in request.claims:
            self._say(f"{deed} {claim.uid}")
            answer.claims.add(key=claim.uid).value.SetInParent()
        return answer

    def _say(self, line: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{line}\n")


def main(name: str, log: Path) -> None:
    """Serve until killed."""
    registry, folder = _KUBELET / "plugins_registry", _KUBELET / "plugins" / name
    while not registry.exists():
        time.sleep(0.1)
    folder.mkdir(parents=True, exist_ok=True)
    endpoint, door = folder / "dra.sock", registry / f"{name}-reg.sock"
    driver = Driver(name, endpoint=endpoint, log=log)
    for left in (endpoint, door):
        left.unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=driver.handlers())
    server.add_insecure_port(f"unix://{endpoint}")
    server.add_insecure_port(f"unix://{door}")
    server.start()
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
