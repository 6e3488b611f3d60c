"""Lazy public names: a face imports the module of a name when the name is first used (PEP 562)."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # not typing's: importing a face imports nothing else
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

__all__ = ["lazy"]


def lazy(
    package: str, names: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package that is the face of its modules.

    A name that was used once is an ordinary attribute of the package from then on.

    Args:
        package: The package's ``__name__``.
        names: The public names of each module, by the module's full name.

    """
    homes = {name: module for module, exported in names.items() for name in exported}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415 - only when a name is used

        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names_of() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names_of
