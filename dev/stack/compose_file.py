"""What a Compose file says of its services, as far as the stack's own file uses the format."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from airflow_s3commit.testing.programs import ProgramFailed
from dev.stack.services import Service

if TYPE_CHECKING:
    from collections.abc import Mapping

#: ``${NAME}``, ``${NAME:-default}`` and ``${NAME:?message}``.
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")

#: A stage of a Dockerfile: its name, and its lines up to the next one.
_STAGE = re.compile(r"^FROM \S+ AS (\S+)\n((?:(?!FROM ).*\n?)*)", re.MULTILINE)

_ENTRYPOINT = re.compile(r"^ENTRYPOINT (\[.*\])$", re.MULTILINE)


def read_env(path: Path) -> dict[str, str]:
    """Return the variables of an ``.env`` file of plain ``NAME=value`` lines."""
    lines = (line.strip() for line in path.read_text().splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def read_compose(path: Path, variables: Mapping[str, str]) -> dict[str, Service]:
    """Return the services of a Compose file by name.

    Args:
        path: The file. The contexts that its images are built from are on this machine.
        variables: What ``${NAME}`` stands for in it.

    Raises:
        ProgramFailed: A variable that the file asks for is missing, or an image has no entry point here.

    """
    services: dict[str, Any] = yaml.safe_load(_filled_in(path.read_text(), variables))["services"]
    entrypoints = {
        service["image"]: _entrypoint(path.parent, service["build"])
        for service in services.values()
        if "build" in service
    }
    return {name: _service(name, service, entrypoints) for name, service in services.items()}


def _service(name: str, service: dict[str, Any], entrypoints: Mapping[str, list[str]]) -> Service:
    entrypoint = service.get("entrypoint") or entrypoints.get(service["image"], [])
    health = service["healthcheck"]
    mounts = (mount.split(":") for mount in service.get("volumes", ()))
    return Service(
        name=name,
        command=[*entrypoint, *service.get("command", ())],
        environment={key: str(value) for key, value in service.get("environment", {}).items()},
        health=[] if health.get("disable") else health["test"][1:],
        after=tuple(service.get("depends_on", ())),
        mounts={inside: outside for outside, inside, *_ in mounts},
    )


def _entrypoint(directory: Path, build: Mapping[str, str]) -> list[str]:
    dockerfile, target = directory / build["context"] / build["dockerfile"], build["target"]
    found = _ENTRYPOINT.search(dict(_STAGE.findall(dockerfile.read_text())).get(target, ""))
    if found is None:
        raise ProgramFailed(f"{dockerfile} names no ENTRYPOINT in the form of a list for {target}")
    entrypoint: list[str] = json.loads(found[1])
    return entrypoint


def _filled_in(text: str, variables: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        if variables.get(name):
            return variables[name]
        if kind == "-":
            return str(rest)
        raise ProgramFailed(f"the Compose file needs {name}" + (f": {rest}" if rest else ""))

    return _VARIABLE.sub(value, text)
