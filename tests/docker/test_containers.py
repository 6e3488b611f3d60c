"""The images and the stack by a real engine: two nights, a worker killed in mid-commit, nothing left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docker.engine import Engine, NoEngine, running_engine, with_compose

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.all, pytest.mark.timeout(3600), pytest.mark.xdist_group("containers")]

ROOT = Path(__file__).parents[2]

#: Bytes that an image may have, base included.
LIMITS = {"spark": 1.4e9, "airflow": 1.9e9, "seaweedfs": 0.6e9}

#: Bytes of disk that all of it may take: base, stand-ins, stages, images, volumes.
DISK = 6e9

#: Programs that build or install, and what they leave.
NOT_IN_AN_IMAGE = """
for name in uv gcc cc c++ make git; do command -v $name; done
find /opt/s3commit /root /home /tmp /var/lib/apt/lists /var/cache/apt -type f -size +16k \\
  \\( -path '*/pip/*' -o -path '*/.cache/*' -o -path '/var/*' -o -name '*.whl' \\)
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Engine]:
    """Have an engine with Docker Compose, and the images on it."""
    cache = pytestconfig.cache
    assert cache is not None
    try:
        with running_engine(tmp_path_factory.mktemp("engine")) as engine:
            whole = with_compose(engine, cache.mkdir("docker-compose"))
            subprocess.run(["make", "images"], cwd=ROOT, env=os.environ | whole.environment, check=True)
            yield whole
    except NoEngine as error:
        pytest.skip(str(error))


def left(engine: Engine) -> set[str]:
    """Return the containers, volumes and networks that are there."""
    containers = engine.docker("ps", "--all", "--format", "container {{.Names}}")
    volumes = engine.docker("volume", "ls", "--format", "volume {{.Name}}")
    networks = engine.docker("network", "ls", "--format", "network {{.Name}}")
    return set((containers + volumes + networks).splitlines())


@pytest.mark.parametrize("image", LIMITS)
def test_an_image_holds_what_it_runs_and_no_more(engine: Engine, image: str) -> None:
    """It keeps its size, has no compiler, installer or cache, and its programs are not root's."""
    (facts,) = json.loads(engine.docker("image", "inspect", f"s3commit-{image}"))
    assert facts["Size"] < LIMITS[image]
    assert facts["Config"]["User"] == "10001:10001"
    run = ("run", "--rm", "--network=none", "--user=0", "--entrypoint=sh", f"s3commit-{image}", "-c")
    assert engine.docker(*run, NOT_IN_AN_IMAGE).split() == []
    assert "sweep" in engine.docker(*run[:3], "--entrypoint=s3commit", f"s3commit-{image}", "--help")


@pytest.mark.parametrize(
    "arguments", [[], ["--host-network"]], ids=["its own networks", "the host's network"]
)
def test_the_stack_commits_and_survives_a_killed_worker(
    engine: Engine, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nights over Airflow's API end right, row for row, one with its worker killed in mid-commit."""
    for name, value in engine.environment.items():
        monkeypatch.setenv(name, value)
    before = left(engine)
    command = [sys.executable, "-m", "dev.stack", "--docker", "--check", "--home", str(tmp_path)]
    tried = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert tried.returncode == 0, tried.stdout
    assert "✗" not in tried.stdout, tried.stdout
    assert "✓ the worker was killed while it committed" in tried.stdout
    assert left(engine) == before
    if engine.data is not None:
        used = subprocess.run(["du", "-sxB1", engine.data], capture_output=True, text=True, check=True).stdout
        assert int(used.split()[0]) < DISK
