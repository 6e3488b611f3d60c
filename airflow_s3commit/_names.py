"""Public names: imported when they are first used, so that importing a package imports nothing else."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # not typing's, whose import every user of the package would pay for
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def lazy(spec: Any) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package that exports names of other modules.

    The names are those that the package's source imports in its block ``if TYPE_CHECKING:``, which ends at an
    empty line and has nothing but ``from`` imports. The first use of a name imports its module and makes the
    name an ordinary attribute of the package (PEP 562).

    Raises:
        AttributeError: Raised by ``__getattr__`` for any other name.

    Args:
        spec: The package's ``__spec__``.
    """
    # get_source() would import the tokenizer. get_data() too reads from a zip archive, as Spark ships one.
    source = spec.loader.get_data(spec.origin).decode().replace("\r\n", "\n")
    block = source.partition("\nif TYPE_CHECKING:\n")[2].partition("\n\n")[0]
    homes: dict[str, str] = {}
    for statement in block.split("from ")[1:]:
        module, _, exported = statement.partition(" import ")
        homes |= dict.fromkeys(exported.strip(" ()\n").replace(",", " ").split(), module)
    package = spec.name

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
