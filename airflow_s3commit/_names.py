"""Public names: imported when they are first used, so that importing a package imports nothing else."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # not typing's: every process that imports the package imports this
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any


def lazy(
    package: str, names: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package that exports names of other modules.

    The first use of a name imports its module and makes the name an ordinary attribute of the package
    (PEP 562). ``__getattr__`` raises `AttributeError` for any other name.

    Args:
        package: The package's ``__name__``.
        names: The full name of each module, with the names to export from it.
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
