"""What the cluster's tests share: pictures, a cluster of two machines on this one, an S3 server."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from conftest import draw

SMALL = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


@pytest.fixture(scope="session")
def surroundings() -> Iterator[str]:
    """The environment in which the machines start; the address where S3 will be."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    settings = {
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": address,
        "AWS_REGION": "us-east-1",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "OMP_NUM_THREADS": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_BACKEND_LOG_LEVEL": "fatal",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_metrics_collection": "0",
        "RAY_health_check_failure_threshold": "3",
        "RAY_health_check_period_ms": "500",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        yield address


@pytest.fixture(scope="module")
def machines(surroundings: str) -> Iterator[Any]:
    """A cluster of one machine, to which a test may add others."""
    pytest.importorskip("ray", reason="Ray isn't installed; pip install 'argus-vlm[ray]'")
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **SMALL})
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of twelve pictures and two files that are none."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(12):
        draw(90, 60, seed=number).save(folder / f"{number}.png")
    (folder / "torn.jpg").write_bytes(b"\xff\xd8\xff")
    (folder / "notes.txt").write_text("none")
    return folder


@pytest.fixture(scope="session")
def s3(surroundings: str) -> Iterator[str]:
    """moto's S3 server, with the bucket "shelf".

    It is a program with a Python of its own, as it wants an older dateutil.
    """
    beside = Path(sys.executable).parents[1] / "moto/bin/moto_server"
    from pyarrow.fs import S3FileSystem

    program = shutil.which("moto_server") or (str(beside) if beside.is_file() else None)
    if program is None:
        pytest.skip("moto_server isn't there; pip install 'moto[server]', best in .venv/moto")
    words = [program, "-H", "127.0.0.1", "-p", surroundings.rpartition(":")[2]]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with suppress(URLError):
                urlopen(f"{surroundings}/moto-api/").close()
                break
            time.sleep(0.1)
        S3FileSystem(endpoint_override=surroundings, allow_bucket_creation=True).create_dir("shelf")
        yield surroundings
    finally:
        server.kill()
        server.wait()
