"""What containers would find by name and path is found on loopback, in the order that Compose keeps."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_s3commit.testing import ProgramFailed
from dev.stack.compose_file import read_compose, read_env
from dev.stack.places import Places
from dev.stack.services import RunningServices, Service

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"

COMPOSE = """
x-common: &common
  image: own
  healthcheck: {disable: true}
services:
  api:
    <<: *common
    build: {context: ., dockerfile: Dockerfile, target: mine}
    command: [serve, /data/x]
    environment: {ADDRESS: "0.0.0.0:80", TOKEN: "${TOKEN:?make one}", DEPTH: 3, COLOUR: "${COLOUR:-red}"}
    volumes: ["./here:/data:ro", "kept:/state"]
  user:
    <<: *common
    command: [use]
    depends_on: {api: {condition: service_healthy}}
    healthcheck: {test: [CMD, /check, user]}
"""


def written(directory: Path) -> Path:
    """Write a Compose file and the image it builds."""
    (directory / "Dockerfile").write_text(
        'FROM a AS other\nENTRYPOINT ["/other.sh"]\n'
        'FROM a AS mine\nCOPY b b\nENTRYPOINT ["/opt/source/run.sh"]\nFROM mine AS last\nCOPY c c\n'
    )
    file = directory / "compose.yaml"
    file.write_text(COMPOSE)
    return file


def service(name: str = "api", mounts: Mapping[str, str] | None = None, **environment: str) -> Service:
    """Return a service with these variables."""
    return Service(name, [], environment, [], mounts=dict(mounts or {}))


def test_services_are_read_with_their_variables_filled_in(tmp_path: Path) -> None:
    """Entry points come from the image's stage, variables from the file beside, defaults from itself."""
    services = read_compose(written(tmp_path), {"TOKEN": "t0"})
    api, user = services["api"], services["user"]
    assert api.command == ["/opt/source/run.sh", "serve", "/data/x"]
    assert api.environment == {"ADDRESS": "0.0.0.0:80", "TOKEN": "t0", "DEPTH": "3", "COLOUR": "red"}
    assert api.mounts == {"/data": "./here", "/state": "kept"}
    assert user.command == ["/opt/source/run.sh", "use"]
    assert (user.health, user.after, api.health) == (["/check", "user"], ("api",), [])


def test_a_missing_variable_is_named(tmp_path: Path) -> None:
    """A missing secret stops everything, and the message says what to do."""
    with pytest.raises(ProgramFailed, match="TOKEN: make one"):
        read_compose(written(tmp_path), {})


def test_secrets_are_read_from_the_file_that_compose_reads(tmp_path: Path) -> None:
    """Comments and empty lines are skipped, values may hold an equals sign."""
    (tmp_path / "env").write_text("# a comment\n\nKEY=abc=\nOTHER=1\n")
    assert read_env(tmp_path / "env") == {"KEY": "abc=", "OTHER": "1"}


def test_addresses_are_loopback_s(tmp_path: Path) -> None:
    """A service's address is the same loopback port to itself and to all others; words are left alone."""
    api = service(ADDRESS="0.0.0.0:80")
    user = service(
        "user", URL="http://u:p@api:80/x?api", NAME="api", WORDS="an api", NEAR="my-api:80", N="80"
    )
    places = Places([api, user], checkout=tmp_path, compose=tmp_path, home=tmp_path)
    port = places.port("api", 80)
    assert places.environment(api) == {"ADDRESS": f"127.0.0.1:{port}"}
    assert places.environment(user) == {
        "URL": f"http://u:p@127.0.0.1:{port}/x?api",
        "NAME": "127.0.0.1",
        "WORDS": "an api",
        "NEAR": "my-api:80",
        "N": "80",
    }


def test_paths_are_this_machine_s(tmp_path: Path) -> None:
    """Mounts are what is behind them, the source is the checkout, and all else is the container's own."""
    api = service(
        mounts={"/opt/app/dags": "../dags", "/opt/app/logs": "kept"},
        DAGS="/opt/app/dags/x",
        LOGS="/opt/app/logs",
        HOME="/opt/app",
        LIKE="/opt/app/logs-old",
    )
    home, compose = tmp_path / "home", tmp_path / "docker"
    places = Places([api], checkout=ROOT, compose=compose, home=home)
    assert places.environment(api) == {
        "DAGS": str(tmp_path / "dags" / "x"),
        "LOGS": str(home / "volumes" / "kept"),
        "HOME": str(home / "containers" / "api" / "opt" / "app"),
        "LIKE": str(home / "containers" / "api" / "opt" / "app" / "logs-old"),
    }
    assert places.command(api, ["/opt/source/docker/health.py", "s3"]) == [str(DOCKER / "health.py"), "s3"]


def test_the_real_file_leaves_no_container_s_address(tmp_path: Path) -> None:
    """Every address in the stack's own Compose file has its place on loopback, and no path is left over."""
    subprocess.run([DOCKER / "make-env.sh", tmp_path / "env"], check=True, capture_output=True)
    services = read_compose(DOCKER / "compose.yaml", read_env(tmp_path / "env"))
    places = Places(services.values(), checkout=ROOT, compose=DOCKER, home=tmp_path / "home")
    for one in services.values():
        for name, value in places.environment(one).items():
            if name in ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "AIRFLOW__CELERY__RESULT_BACKEND"):
                continue  # PostgreSQL is told where it is by other means
            assert "0.0.0.0" not in value, (one.name, name)
            assert not [other for other in services if re.search(rf"(^|[@/]){other}:\d", value)], (
                one.name,
                name,
            )
            assert not value.startswith(("/opt/", "/run/", "/data")), (one.name, name)


def program(name: str, code: str, *after: str, health: str = "exit 0") -> Service:
    """Return a service that is a line of shell, as is its health check."""
    return Service(
        name, ["sh", "-c", code], {"PATH": "/usr/bin:/bin"}, ["sh", "-c", health] if health else [], after
    )


def test_services_start_when_those_before_are_ready(tmp_path: Path) -> None:
    """A service starts after those it needs are healthy, or have ended well, and all end together."""
    told: list[str] = []
    stays = "echo $$ >{0}.pid; {1} exec sleep 600"
    services = [
        program(
            "last",
            stays.format("last", "test -e made || exit 1;"),
            "once",
            "absent",
            health="test -s last.pid",
        ),
        program("first", stays.format("first", "sleep 0.2; touch up;"), health="test -e up"),
        program("once", "test -e up && touch made", "first", health=""),
    ]
    running = RunningServices(services, directory=tmp_path, logs=tmp_path / "logs", tell=told.append)
    with running:
        assert told == ["first", "once", "last"]
        assert running.ailing() == []
        (tmp_path / "up").unlink()
        assert running.ailing() == ["first"]
        running.check_running()
        pids = [(tmp_path / f"{name}.pid").read_text().strip() for name in ("first", "last")]
        assert all(Path("/proc", pid).exists() for pid in pids)
    assert not any(Path("/proc", pid).exists() for pid in pids)


@pytest.mark.parametrize("health", ["exit 1", ""], ids=["stays", "once"])
def test_a_service_that_fails_ends_the_start(tmp_path: Path, health: str) -> None:
    """The start ends with the name of what failed and its last words, and nothing is left running."""
    services = [
        program("whole", "echo $$ >whole.pid; exec sleep 600", health="test -s whole.pid"),
        program("broken", "echo no room left; exit 3", "whole", health=health),
    ]
    with (
        pytest.raises(ProgramFailed, match=r"(?s)broken ended with 3.*no room left"),
        RunningServices(services, directory=tmp_path, logs=tmp_path / "logs"),
    ):
        pass
    assert not Path("/proc", (tmp_path / "whole.pid").read_text().strip()).exists()
