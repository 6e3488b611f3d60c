"""Where the addresses and paths of containers are on this machine, which is all of them at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_s3commit.testing.programs import free_ports
from dev.stack.base import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dev.stack.services import Service

#: What listens on every interface of a container listens on loopback here.
_EVERYWHERE = "0.0.0.0"  # noqa: S104 - looked for, so as not to be used

#: Where an image has the checkout it was built from.
_SOURCE = "/opt/source"


class Places:
    """Puts loopback ports for services' addresses, and this machine's paths for containers'.

    Args:
        services: All services.
        checkout: The checkout, which the images hold at ``/opt/source``.
        compose: The directory of the Compose file, which its mounts are relative to.
        home: Where volumes and everything else that containers write are to lie.

    """

    def __init__(self, services: Iterable[Service], *, checkout: Path, compose: Path, home: Path) -> None:
        named = list(services)
        self._checkout = checkout
        self._compose = compose
        self._home = home
        names = "|".join(sorted((re.escape(service.name) for service in named), key=len, reverse=True))
        self._address = re.compile(rf"(?<![\w.-])({names})(?::(\d+))?(?![\w.-])")
        wanted = {address for service in named for address in self._listening(service)}
        self._ports = dict(zip(sorted(wanted), free_ports(len(wanted)), strict=True))

    def port(self, service: str, port: int) -> int:
        """Return the loopback port that stands for a service's port."""
        return self._ports[service, port]

    def environment(self, service: Service) -> dict[str, str]:
        """Return a service's variables with every address and path in place."""
        return {name: self._here(service, value) for name, value in service.environment.items()}

    def command(self, service: Service, command: Iterable[str]) -> list[str]:
        """Return one of a service's commands with every path in place."""
        return [self._path(service, word) if word.startswith("/") else word for word in command]

    def volume(self, name: str) -> Path:
        """Return the directory of a named volume."""
        return self._home / "volumes" / name

    def inside(self, service: str) -> Path:
        """Return the directory of what a container has to itself."""
        return self._home / "containers" / service

    def mounted(self, service: Service, inside: str) -> Path:
        """Return what is behind one of a service's mounts."""
        return Path(self._path(service, inside))

    def _listening(self, service: Service) -> set[tuple[str, int]]:
        """Return the services and ports that are mentioned in a service's variables."""
        found = set()
        for value in service.environment.values():
            found |= {(name, int(port)) for name, port in self._address.findall(value) if port}
            host, _, port = value.rpartition(":")
            if host == _EVERYWHERE:
                found.add((service.name, int(port)))
        return found

    def _here(self, service: Service, value: str) -> str:
        if value.startswith("/"):
            return self._path(service, value)
        host, _, port = value.rpartition(":")
        if host == _EVERYWHERE:
            return f"{HOST}:{self.port(service.name, int(port))}"
        if value == _EVERYWHERE:
            return HOST
        return self._address.sub(self._loopback, value)

    def _loopback(self, found: re.Match[str]) -> str:
        name, port = found.groups()
        if port:
            return f"{HOST}:{self.port(name, int(port))}"
        # A bare name that is all of a value is an address too; within a text it is just a word.
        return HOST if found[0] == found.string else found[0]

    def _path(self, service: Service, path: str) -> str:
        for inside, outside in _longest_first(service.mounts):
            below = _below(path, inside)
            if below is not None:
                named = outside.startswith((".", "/"))
                root = (self._compose / outside).resolve() if named else self.volume(outside)
                return str(root / below)
        below = _below(path, _SOURCE)
        if below is not None:
            return str(self._checkout / below)
        return str(self.inside(service.name) / path.lstrip("/"))


def _longest_first(mounts: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(mounts.items(), key=lambda mount: -len(mount[0]))


def _below(path: str, root: str) -> str | None:
    """Return a path relative to a root, ``.`` for the root itself; None if it is not below it."""
    if path == root:
        return "."
    return path[len(root) + 1 :] if path.startswith(f"{root}/") else None
