"""Ships this package to executors as a zip for ``--py-files``, and checks that they have its libraries.

The libraries are not shipped: msgspec and pyarrow are compiled for one platform and one Python, and cannot be
imported from a zip.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from airflow_s3commit import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.resources.abc import Traversable

#: The module by which Spark finds the data source; importing it imports PySpark.
_DISCOVERED = "pyspark_s3commit"

#: The oldest time that a zip can tell: the same for every file, so that the same code is the same zip.
_TIME = (1980, 1, 1, 0, 0, 0)

#: Read and written by its owner, read by all; the upper half of a zip's external attributes.
_MODE = 0o644 << 16

_NAME_DIGITS = 12


def py_files(directory: str | os.PathLike[str] | None = None) -> str:
    """Return the path of a zip that ships this package to executors, for ``--py-files``.

    The zip is made from the code that runs here, and is the same, byte for byte, wherever the same code
    makes it. Its name has the version and a digest of its content: it is written once, and again only if it
    is gone or damaged.

    Args:
        directory: Where to put it; by default the user's cache, ``$XDG_CACHE_HOME/airflow-s3commit`` or
            ``~/.cache/airflow-s3commit``, which only the user may enter.

    Raises:
        OSError: It cannot be written there.

    """
    content = _content()
    digest = hashlib.sha256(content).hexdigest()[:_NAME_DIGITS]
    home = Path(directory) if directory is not None else _cache()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = home.absolute() / f"airflow_s3commit-{__version__}-{digest}.zip"
    if not path.is_file() or path.read_bytes() != content:
        # Calls at the same time, in threads and on machines that share the directory, have one each.
        fresh = path.with_suffix(f".{uuid4().hex}")
        fresh.write_bytes(content)
        fresh.replace(path)
    return str(path)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-s3commit"


@cache
def _content() -> bytes:
    # Executors import this module to check their libraries, and make no zip.
    import zipfile  # noqa: PLC0415

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, source in sorted(_modules()):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.create_system = 3  # Unix, wherever it is made
            entry.external_attr = _MODE
            # Deflated bytes depend on the version of zlib; so little is not worth it.
            archive.writestr(entry, source)
    return buffer.getvalue()


def _modules() -> Iterator[tuple[str, bytes]]:
    from importlib.resources import files  # noqa: PLC0415

    package = __name__.partition(".")[0]
    yield from _below(package, files(package))
    spec = find_spec(_DISCOVERED)
    # The loader of zips has the method, and is no `InspectLoader`.
    get_source = getattr(spec.loader if spec is not None else None, "get_source", None)
    if get_source is not None:
        yield f"{_DISCOVERED}/__init__.py", get_source(_DISCOVERED).encode()


def _below(path: str, folder: Traversable) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _below(name, entry)
        elif name.endswith(".py"):
            yield name, entry.read_bytes()


#: What every process needs from elsewhere that imports `airflow_s3commit.spark`, Airflow's own included.
_EVERYWHERE = ("boto3", "msgspec")

#: What Spark's Python workers need besides, and the module by which they are known.
_IN_WORKERS = ("pyarrow",)

_WORKER = "pyspark.worker"


class MissingLibrary(ImportError):
    """A library that this package needs is not installed on this machine."""


def require_libraries(names: Iterable[str] | None = None) -> None:
    """Check that libraries are installed.

    Args:
        names: Their names, which are those they are installed by too; by default what this package needs
            in a process such as this one.

    Raises:
        MissingLibrary: Some are not; the message names them, this machine, its Python, and what to run.

    """
    if names is None:
        names = _EVERYWHERE + (_IN_WORKERS if _WORKER in sys.modules else ())
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise MissingLibrary(
            f"airflow-s3commit needs {' and '.join(missing)}, missing in {sys.executable} on"
            f" {platform.node()}. --py-files ships the package without the libraries it needs: install them"
            f" on every executor with: {sys.executable} -m pip install boto3 msgspec pyarrow",
            name=missing[0],
        )
