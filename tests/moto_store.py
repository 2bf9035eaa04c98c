"""An S3 server in this process, played by moto, with one bucket."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

REGION = "us-east-1"


def client_of(address: str, keys: Mapping[str, str]) -> Any:
    """Return a client of the server at this address."""
    return boto3.client("s3", endpoint_url=address, region_name=REGION, **keys)


@contextmanager
def moto_store(bucket: str, keys: Mapping[str, str]) -> Generator[str]:
    """Run the server and give its address.

    Args:
        bucket: that it has.
        keys: aws_access_key_id and aws_secret_access_key of the client that makes it.
    """
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    with closing(client_of(address, keys)) as client:
        client.create_bucket(Bucket=bucket)
    try:
        yield address
    finally:
        server.stop()
