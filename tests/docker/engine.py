"""An engine that runs containers, and the images that the stack takes from a registry: here, or made here.

Where Docker runs already it is used as it is. Where it does not, but Debian's packages ``docker.io`` and
``debootstrap`` are installed and this is root, one is started for the tests, with data and a socket of its
own, and without a rule in the machine's firewall. What a registry would give is made there of Debian's
packages: the base, with this machine's certificates and settings for pip and apt, and PostgreSQL and Redis by
the names of the official images.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from airflow_s3commit.testing.programs import Program

__all__ = ["Engine", "NoEngine", "running_engine", "with_compose"]

HERE = Path(__file__).parent
COMPOSE_FILE = HERE.parents[1] / "docker" / "compose.yaml"

BASE = "python:3.11-slim-bookworm"

#: What the base takes over from this machine, so that builds in it reach what this machine reaches.
SETTINGS = ("etc/ssl/certs/ca-certificates.crt", "etc/pip.conf", "etc/apt/sources.list.d/debian.sources")

#: Docker Compose as a Go module, with what its build needs to be one of another module.
COMPOSE_MODULE = "github.com/docker/compose/v2/cmd"
COMPOSE_VERSION = "v2.40.3"


class NoEngine(Exception):
    """There is no engine, and none can be started; the message says why."""


@dataclass(frozen=True)
class Engine:
    """A running engine.

    Attributes:
        environment: The variables with which ``docker`` finds it, and with which images are built on it.
        data: Where it keeps everything, if it was started here.
    """

    environment: dict[str, str] = field(default_factory=dict)
    data: Path | None = None

    def docker(self, *arguments: str | Path) -> str:
        """Run ``docker`` and return what it says; fails if that does."""
        return said("docker", *arguments, environment=self.environment)


def said(*command: str | Path, environment: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a program and return what it says; fails with its last words if that does."""
    done = subprocess.run(
        [str(word) for word in command],
        env=os.environ | dict(environment or {}),
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def running_engine(directory: Path) -> Iterator[Engine]:
    """Yield an engine with every image that the stack starts from.

    Raises:
        NoEngine: Neither is one running, nor can one be started.
    """
    if shutil.which("docker") is None:
        raise NoEngine("docker is not installed (Debian's package is docker.io)")
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0:
        _pull()
        yield Engine()
        return
    missing = [name for name in ("dockerd", "debootstrap", "iptables") if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        raise NoEngine(
            f"no engine runs here; to start one takes root and {', '.join(missing) or 'nothing else'}"
        )
    socket, data = f"unix://{directory / 'docker.sock'}", directory / "data"
    command = [
        *("dockerd", "--host", socket, "--data-root", str(data), "--exec-root", str(directory / "run")),
        *(
            "--pidfile",
            str(directory / "docker.pid"),
            "--bridge=none",
            "--iptables=false",
            "--ip6tables=false",
        ),
        *("--ip-forward=false", "--ip-masq=false"),
    ]
    engine = Engine({"DOCKER_HOST": socket, "BUILD_NETWORK": "host"}, data)
    with Program("dockerd", command, log=directory / "dockerd.log", grace=30.0) as program:
        deadline = time.monotonic() + 60
        while subprocess.run(
            ["docker", "info"], env=os.environ | engine.environment, capture_output=True, check=False
        ).returncode:
            if not program.running or time.monotonic() > deadline:
                raise NoEngine(f"dockerd does not start here{program.last_words()}")
            time.sleep(0.5)
        _make_images(engine, directory / "base")
        yield engine
    _unmount(directory)
    shutil.rmtree(data, ignore_errors=True)


def _unmount(directory: Path) -> None:
    """Take off what an ended engine leaves mounted: its namespace, and data of what it could not stop."""
    mounted = [Path(line.split()[1]) for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in reversed([place for place in mounted if place.is_relative_to(directory)]):
        said("umount", "--lazy", place)


def _pull() -> None:
    """Have what the Compose file takes from a registry."""
    services = yaml.safe_load(COMPOSE_FILE.read_text())["services"].values()
    images = {service["image"] for service in services if not service["image"].startswith("s3commit-")}
    for image in sorted({BASE, *images}):
        if subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode:
            pulled = subprocess.run(
                ["docker", "pull", "-q", image], capture_output=True, text=True, check=False
            )
            if pulled.returncode:
                raise NoEngine(
                    f"an engine runs, but {image} is neither there nor to be had: {pulled.stderr.strip()}"
                )


def _make_images(engine: Engine, root: Path) -> None:
    said(
        *("debootstrap", "--variant=minbase", "--include=python3,python3-venv,python3-pip,ca-certificates"),
        *("bookworm", root),
    )
    for name in SETTINGS:
        if (Path("/") / name).is_file():
            shutil.copy(Path("/") / name, root / name)
    for settings in Path("/etc/apt/apt.conf.d").iterdir():
        if "Acquire::Check" in settings.read_text():
            shutil.copy(settings, root / "etc/apt/apt.conf.d")
    if (root / "etc/apt/sources.list.d/debian.sources").exists():
        (root / "etc/apt/sources.list").unlink(missing_ok=True)
    archive = root.with_suffix(".tar")
    left_out = [f"--exclude=./{name}/*" for name in ("var/cache/apt/archives", "var/lib/apt/lists")]
    said("tar", *left_out, "-C", root, "-cf", archive, ".")
    change = "ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"
    engine.docker("import", "--change", change, archive, BASE)
    archive.unlink()
    shutil.rmtree(root)
    stand_ins = [word for name in ("postgres:17-bookworm", "redis:7.4-bookworm") for word in ("--tag", name)]
    engine.docker("build", "--network=host", "--build-arg", f"BASE={BASE}", *stand_ins, HERE / "debian")


def with_compose(engine: Engine, directory: Path) -> Engine:
    """Return the engine with Docker Compose, built here from its Go module where there is none.

    Args:
        engine: The engine.
        directory: Where what is built here is kept from one session to the next.

    Raises:
        NoEngine: There is none, and no Go to build it with.
    """
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return engine
    if shutil.which("go") is None:
        raise NoEngine("docker compose is missing here, and there is no Go to build it with")
    built = directory / "cli-plugins" / "docker-compose"
    if not built.exists():
        module = directory / "module"
        module.mkdir(parents=True, exist_ok=True)
        (module / "go.mod").write_text("module compose\n\ngo 1.24\n")
        (module / "tools.go").write_text(
            f'//go:build tools\n\npackage tools\n\nimport _ "{COMPOSE_MODULE}"\n'
        )
        said("go", "get", f"{COMPOSE_MODULE}@{COMPOSE_VERSION}", cwd=module)
        version = f"-X github.com/docker/compose/v2/internal.Version={COMPOSE_VERSION}"
        said("go", "build", "-ldflags", f"-s -w {version}", "-o", built, COMPOSE_MODULE, cwd=module)
    return Engine(engine.environment | {"DOCKER_CONFIG": str(directory)}, engine.data)
