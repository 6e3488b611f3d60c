"""The jar with the commit protocol that lets Spark's own writers write for a job.

A wheel contains the jar. In a checkout it is compiled when it is first needed, with ``javac`` and the jars of
PySpark; the class files run on Java 8 and newer, on Scala 2.12 and 2.13.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

from airflow_s3commit import __version__
from airflow_s3commit.spark.shipping import ZIP_TIME, cache_directory

#: The commit protocol, for ``spark.sql.sources.commitProtocolClass``.
PROTOCOL_CLASS = "s3commit.spark.PendingCommitProtocol"

#: What refuses commands that delete a job's table without the protocol, for ``spark.sql.extensions``.
GUARD_CLASS = "s3commit.spark.CatalogGuard"

#: The services of the jar. Spark 4 loads the guard by itself if an application sets other extensions; a
#: session of PySpark 3.5 does not.
_SERVICES = {"org.apache.spark.sql.SparkSessionExtensionsProvider": GUARD_CLASS}

_SOURCES = Path(__file__).parent / "jvm"

_NAME_DIGITS = 12

#: Class files for Spark 3.5, which runs on Java 8 too.
_JAVA_RELEASE = "8"


class MissingJar(RuntimeError):
    """The jar is not in this installation, and cannot be compiled here."""


def pending_jar() -> str:
    """Return the path of the jar for ``--jars`` of a job whose own writes are to stay pending.

    It depends on Spark 3.5 or newer and on ``hadoop-aws`` 3.3.7, 3.4 or newer, which the cluster must have.
    Repeatable: in a checkout, the jar is compiled once and kept in ``$XDG_CACHE_HOME/airflow-s3commit`` or
    ``~/.cache/airflow-s3commit``.

    Raises:
        MissingJar: This is a checkout, and ``javac`` or PySpark is missing.
        OSError: The jar cannot be written.

    """
    name = _name()
    shipped = _SOURCES / name
    if shipped.is_file():
        return str(shipped)
    made = cache_directory() / name
    if not made.is_file():
        build_jar(made)
    return str(made)


def build_jar(path: Path) -> None:
    """Compile the jar, and write it to a path.

    Args:
        path: The file to write.

    Raises:
        MissingJar: ``javac`` or PySpark is missing, or the compilation failed.

    """
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which("javac", path=f"{home}/bin") if home else None
    javac = javac or shutil.which("javac")
    pyspark = find_spec("pyspark")
    if javac is None or pyspark is None or pyspark.origin is None:
        missing = "no javac in JAVA_HOME or PATH" if javac is None else "no PySpark"
        raise MissingJar(
            f"this checkout of airflow-s3commit has no {path.name}, and there is {missing} to compile it:"
            " install a wheel, which has it, or a JDK (Debian: default-jdk-headless) and pyspark"
        )
    class_path = f"{Path(pyspark.origin).parent}/jars/*"
    with tempfile.TemporaryDirectory(prefix="s3commit-") as classes:
        command = [
            javac,
            "--release",
            _JAVA_RELEASE,
            "-nowarn",
            "-proc:none",
            "-cp",
            class_path,
            "-d",
            classes,
        ]
        done = subprocess.run(  # noqa: S603 - the JDK's own compiler
            [*command, *map(str, _java_files())], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise MissingJar(f"{javac} cannot compile {path.name}: {done.stderr.strip()[-2000:]}")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A file of its own for each call: threads and machines may share the directory.
        fresh = path.with_suffix(f".{uuid4().hex}")
        with zipfile.ZipFile(fresh, "w") as archive:
            for file in sorted(Path(classes).rglob("*.class")):
                entry = zipfile.ZipInfo(file.relative_to(classes).as_posix(), ZIP_TIME)
                archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
            for service, name in _SERVICES.items():
                archive.writestr(zipfile.ZipInfo(f"META-INF/services/{service}", ZIP_TIME), f"{name}\n")
        fresh.replace(path)


def _java_files() -> list[Path]:
    return sorted(_SOURCES.glob("*.java"))


def _name() -> str:
    sources = [*(file.read_bytes() for file in _java_files()), repr(_SERVICES).encode()]
    digest = hashlib.sha256(b"\0".join(sources)).hexdigest()
    return f"s3commit-spark-{__version__}-{digest[:_NAME_DIGITS]}.jar"


def main() -> None:
    """Compile the jar into the package, for a wheel."""
    for old in _SOURCES.glob("*.jar"):
        old.unlink()
    build_jar(_SOURCES / _name())
    sys.stdout.write(f"{_SOURCES / _name()}\n")


if __name__ == "__main__":
    main()
