"""What a session ships to its executors: this package as a zip, and a jar for Spark's own writers.

The zip, for ``--py-files``, does not contain the package's libraries, whose presence is checked: msgspec and
pyarrow are compiled for one platform and one Python, and cannot be imported from a zip. The jar has the
commit protocol that lets Spark's own writers write for a job, on Java 8 and newer, Scala 2.12 and 2.13. A
wheel contains it; in a checkout it is compiled, with ``javac`` and the jars of PySpark.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from airflow_s3commit import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.resources.abc import Traversable

#: The earliest time that a zip can hold, for every file, so that the same code makes the same zip.
ZIP_TIME = (1980, 1, 1, 0, 0, 0)

_NAME_DIGITS = 12


def py_files(directory: str | os.PathLike[str] | None = None) -> str:
    """Return the path of a zip that ships this package to executors, for ``--py-files``.

    The zip contains the running code; the same code makes the same zip, byte for byte. Its name has the
    version and a digest of its content. Repeatable: the file is written again only if missing or damaged.

    Args:
        directory: Directory of the zip; by default the user's cache, ``$XDG_CACHE_HOME/airflow-s3commit`` or
            ``~/.cache/airflow-s3commit``, which only the user may enter.

    Raises:
        OSError: The file cannot be written.
    """
    content = _content()
    digest = hashlib.sha256(content).hexdigest()[:_NAME_DIGITS]
    home = Path(directory) if directory is not None else cache_directory()
    path = home.absolute() / f"airflow_s3commit-{__version__}-{digest}.zip"
    if not path.is_file() or path.read_bytes() != content:
        _put(path, content)
    return str(path)


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A file of its own for each call: threads and machines may share the directory.
    fresh = path.with_suffix(f".{uuid4().hex}")
    fresh.write_bytes(content)
    fresh.replace(path)


def cache_directory() -> Path:
    """Return the directory in which this package keeps a user's files."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-s3commit"


@cache
def _content() -> bytes:
    # Not deflated: compressed bytes depend on zlib's version, and the zip is small.
    return _zipped(sorted(_modules()), zipfile.ZIP_STORED)


def _zipped(files: Iterable[tuple[str, bytes]], compression: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files:
            entry = zipfile.ZipInfo(name, ZIP_TIME)
            entry.create_system = 3  # Unix, on every platform
            entry.external_attr = 0o644 << 16  # the file mode rw-r--r--
            archive.writestr(entry, content, compression)
    return buffer.getvalue()


def _modules() -> Iterator[tuple[str, bytes]]:
    from importlib.resources import files  # noqa: PLC0415

    package = __name__.partition(".")[0]
    # A path on the disk or in a zip; both have a parent.
    beside: Any = files(package)
    # The second one lets Spark find the data source; importing it imports PySpark.
    for name in (package, "pyspark_s3commit"):
        yield from _below(name, beside.parent / name)


def _below(path: str, folder: Traversable) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _below(name, entry)
        elif name.endswith(".py"):
            yield name, entry.read_bytes()


class MissingLibrary(ImportError):
    """A library that this package needs is not installed on this machine."""


def require_libraries() -> None:
    """Check that the libraries that this package needs in this kind of process are installed.

    Raises `MissingLibrary` with the machine, its Python, and the command that installs them.
    """
    # Only Spark's Python workers import that module.
    names = ("boto3", "msgspec", *(["pyarrow"] if "pyspark.worker" in sys.modules else []))
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise MissingLibrary(
            f"airflow-s3commit needs {' and '.join(missing)}, missing in {sys.executable} on"
            f" {platform.node()}. --py-files ships the package without its libraries: install them on every"
            f" executor with: {sys.executable} -m pip install boto3 msgspec pyarrow",
            name=missing[0],
        )


#: The commit protocol, for ``spark.sql.sources.commitProtocolClass``.
PROTOCOL_CLASS = "s3commit.spark.PendingCommitProtocol"

#: Guard against commands that would delete a job's table without the protocol, for ``spark.sql.extensions``.
GUARD_CLASS = "s3commit.spark.CatalogGuard"

#: The services of the jar, by which Spark 4 loads the guard even if an application sets other extensions; a
#: session of PySpark 3.5 does not.
_SERVICES = {"org.apache.spark.sql.SparkSessionExtensionsProvider": GUARD_CLASS}

_SOURCES = Path(__file__).parent / "jvm"


class MissingJar(RuntimeError):
    """The jar is not in this installation, and cannot be compiled here."""


def pending_jar() -> str:
    """Return the path of the jar, for ``--jars`` of an application whose own writes must stay pending.

    It depends on Spark 3.5 or newer and on ``hadoop-aws`` 3.4.1 or newer, which the cluster must have.
    Repeatable: a checkout compiles it once, to ``airflow-s3commit`` in ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        MissingJar: This is a checkout, and ``javac`` or PySpark is missing.
        OSError: The jar cannot be written.
    """
    sources = sorted(_SOURCES.glob("*.java"))
    code = [*(file.read_bytes() for file in sources), repr(_SERVICES).encode()]
    digest = hashlib.sha256(b"\0".join(code)).hexdigest()[:_NAME_DIGITS]
    name = f"s3commit-spark-{__version__}-{digest}.jar"
    shipped, made = _SOURCES / name, cache_directory() / name
    if shipped.is_file():
        return str(shipped)
    if not made.is_file():
        _put(made, _compiled(sources, name))
    return str(made)


def _compiled(sources: Iterable[Path], name: str) -> bytes:
    """Return the content of the jar; raise `MissingJar` if it cannot be compiled."""
    home = os.environ.get("JAVA_HOME")
    javac = (home and shutil.which("javac", path=f"{home}/bin")) or shutil.which("javac")
    pyspark = find_spec("pyspark")
    if javac is None or pyspark is None or pyspark.origin is None:
        missing = "no javac in JAVA_HOME or PATH" if javac is None else "no PySpark"
        raise MissingJar(
            f"this checkout of airflow-s3commit has no {name}, and there is {missing} to compile it:"
            " install a wheel, which has it, or a JDK (Debian: default-jdk-headless) and pyspark"
        )
    jars = f"{Path(pyspark.origin).parent}/jars/*"
    with tempfile.TemporaryDirectory(prefix="s3commit-") as classes:
        # Class files for Spark 3.5, which runs on Java 8 too.
        command = [javac, "--release", "8", "-nowarn", "-proc:none", "-cp", jars, "-d", classes]
        done = subprocess.run(  # noqa: S603 - the JDK's own compiler
            [*command, *map(str, sources)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise MissingJar(f"{javac} cannot compile {name}: {done.stderr.strip()[-2000:]}")
        files = [
            (file.relative_to(classes).as_posix(), file.read_bytes())
            for file in sorted(Path(classes).rglob("*.class"))
        ]
    services = [(f"META-INF/services/{name}", f"{known}\n".encode()) for name, known in _SERVICES.items()]
    return _zipped(files + services, zipfile.ZIP_DEFLATED)
