"""Ships this package to executors as a zip for ``--py-files``, and checks that they have its libraries.

The zip does not contain the libraries: msgspec and pyarrow are compiled for one platform and one Python, and
cannot be imported from a zip.
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

#: The earliest time that a zip can hold, for every file, so that the same code makes the same zip.
ZIP_TIME = (1980, 1, 1, 0, 0, 0)

#: The file mode rw-r--r--, in the upper half of a zip entry's external attributes.
_MODE = 0o644 << 16

_NAME_DIGITS = 12


def py_files(directory: str | os.PathLike[str] | None = None) -> str:
    """Return the path of a zip that ships this package to executors, for ``--py-files``.

    The zip contains the running code; the same code makes the same zip, byte for byte. Its name has the
    version and a digest of its content. Repeatable: the file is written again only if it is missing or
    damaged.

    Args:
        directory: Directory of the zip; by default the user's cache, ``$XDG_CACHE_HOME/airflow-s3commit`` or
            ``~/.cache/airflow-s3commit``, which only the user may enter.

    Raises:
        OSError: The file cannot be written.

    """
    content = _content()
    digest = hashlib.sha256(content).hexdigest()[:_NAME_DIGITS]
    home = Path(directory) if directory is not None else cache_directory()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = home.absolute() / f"airflow_s3commit-{__version__}-{digest}.zip"
    if not path.is_file() or path.read_bytes() != content:
        # A file of its own for each call: threads and machines may share the directory.
        fresh = path.with_suffix(f".{uuid4().hex}")
        fresh.write_bytes(content)
        fresh.replace(path)
    return str(path)


def cache_directory() -> Path:
    """Return the directory in which this package keeps files of a user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-s3commit"


@cache
def _content() -> bytes:
    # Executors import this module too, and never make a zip.
    import zipfile  # noqa: PLC0415

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, source in sorted(_modules()):
            entry = zipfile.ZipInfo(name, ZIP_TIME)
            entry.create_system = 3  # Unix, on every platform
            entry.external_attr = _MODE
            # Not deflated: compressed bytes depend on zlib's version, and the zip is small.
            archive.writestr(entry, source)
    return buffer.getvalue()


def _modules() -> Iterator[tuple[str, bytes]]:
    from importlib.resources import files  # noqa: PLC0415

    package = __name__.partition(".")[0]
    yield from _below(package, files(package))
    spec = find_spec(_DISCOVERED)
    # The loader of zips has the method, but is not an `InspectLoader`.
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


#: Libraries of every process that imports `airflow_s3commit.spark`, Airflow's own included.
_EVERYWHERE = ("boto3", "msgspec")

#: Further libraries of Spark's Python workers.
_IN_WORKERS = ("pyarrow",)

#: The module that only Spark's Python workers have imported.
_WORKER = "pyspark.worker"


class MissingLibrary(ImportError):
    """A library that this package needs is not installed on this machine."""


def require_libraries(names: Iterable[str] | None = None) -> None:
    """Check that libraries are installed.

    Args:
        names: Names of the libraries, the same for import and installation; by default those that this
            package needs in this kind of process.

    Raises:
        MissingLibrary: A library is missing; the message has the machine, its Python, and the command that
            installs the libraries.

    """
    if names is None:
        names = _EVERYWHERE + (_IN_WORKERS if _WORKER in sys.modules else ())
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise MissingLibrary(
            f"airflow-s3commit needs {' and '.join(missing)}, missing in {sys.executable} on"
            f" {platform.node()}. --py-files ships the package without its libraries: install them on every"
            f" executor with: {sys.executable} -m pip install boto3 msgspec pyarrow",
            name=missing[0],
        )
