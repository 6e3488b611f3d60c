"""What an executor must have installed, and what to say where it is not."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MissingLibrary", "require_libraries"]

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
