from importlib.util import find_spec

import fsspec
import pytest

from tests.remote.s3_server import ENVIRONMENT, s3_server


@pytest.fixture(scope="session")
def s3_front():
    """An S3 server, and the environment by which this process finds it."""
    for name in ("s3fs", "moto", "flask_cors"):
        if find_spec(name) is None:
            pytest.skip(f"needs {name}, of the group test")
    with pytest.MonkeyPatch.context() as patch, s3_server() as front:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setenv("AWS_ENDPOINT_URL", front.url)
        yield front
        kind = fsspec.get_filesystem_class("s3")
        kind.clear_instance_cache()


@pytest.fixture
def s3(s3_front):
    """The server with an empty bucket, and what fills it."""
    import boto3

    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{s3_front.behind}")
    client.create_bucket(Bucket="bucket")
    s3_front.reset()
    s3_front.client = client
    yield s3_front
    s3_front.reset()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="bucket"):
        names = [{"Key": found["Key"]} for found in page.get("Contents", ())]
        if names:
            client.delete_objects(Bucket="bucket", Delete={"Objects": names})
    client.delete_bucket(Bucket="bucket")
