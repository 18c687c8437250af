"""A server of the test's own that speaks S3, and what a driver has to know to find it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from fsspec import get_filesystem_class
from moto.server import ThreadedMotoServer


@contextmanager
def object_store() -> Iterator[str]:
    """Serve, with the environment of this process set to it; give the URL of an empty bucket."""
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    name = f"bucket-{uuid4().hex[:8]}"
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
            patch.setenv("AWS_ACCESS_KEY_ID", "anybody")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            get_filesystem_class("s3").clear_instance_cache()  # those know the server before
            yield f"s3://{name}"
    finally:
        server.stop()
