"""Public names: imported when first used, and found for one more release by their old paths.

A package exports names of other modules by `lazy`, and imports the module of a name when the name is first
used (PEP 562).

Each old path works for one more release, with a `DeprecationWarning`. `MovedModules`, the last finder on
``sys.meta_path``, loads the modules of `MOVED` that no longer exist. If the old path still exists, as a
package instead of a module or as a module that lost names, it forwards its old names by ``__getattr__ =
forwarding(…)``. A module instead of a package also needs an empty ``__path__``. To drop an old path, delete
its row.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # not typing's: every process that imports the package imports this
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


def lazy(
    package: str, names: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package that exports names of other modules.

    The first use of a name imports its module and makes the name an ordinary attribute of the package.
    ``__getattr__`` raises `AttributeError` for any other name.

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


_PACKAGE = "airflow_s3commit."

#: The old modules, without the package's name, and where each public name is now: a module, or
#: ``module:name`` if the name has changed too.
MOVED: dict[str, dict[str, str]] = {
    "hooks.s3_commit": {
        "S3CommitHook": "airflow_s3commit.hooks",
        "StoreAddress": "airflow_s3commit.hooks",
    },
    "hooks.signing": {"configured_signer": "airflow_s3commit.hooks"},
    "links.manifest": {"ManifestLink": "airflow_s3commit.links"},
    "links.pendingsets": {"PendingsetsLink": "airflow_s3commit.links"},
    "notifications.abort_uploads": {"AbortUploadsNotifier": "airflow_s3commit.notifications"},
    "operators.abort": {"S3CommitAbortOperator": "airflow_s3commit.operators"},
    "operators.audit": {"S3CommitAuditOperator": "airflow_s3commit.operators"},
    "operators.collect": {"S3CommitCollectOperator": "airflow_s3commit.operators"},
    "operators.commit": {"S3CommitJobOperator": "airflow_s3commit.operators"},
    "operators.resolve": {"S3CommitResolveConflictsOperator": "airflow_s3commit.operators"},
    "operators.setup": {"S3CommitSetupOperator": "airflow_s3commit.operators"},
    "operators.shards": {
        "S3CommitBeginOperator": "airflow_s3commit.operators",
        "S3CommitFinishOperator": "airflow_s3commit.operators",
        "S3CommitShardOperator": "airflow_s3commit.operators",
        "ShardedCommit": "airflow_s3commit.operators",
        "sharded_commit": "airflow_s3commit.operators",
    },
    "operators.spark_submit": {"S3CommitSparkSubmitOperator": "airflow_s3commit.operators"},
    "operators.sweep": {"S3CommitSweepOperator": "airflow_s3commit.operators"},
    "protocol.destination": {"Destination": "airflow_s3commit"},
    "protocol.job": {"Job": "airflow_s3commit"},
    "protocol.manifest": {
        "latest_manifest": "airflow_s3commit",
        "manifest_files": "airflow_s3commit",
        "read_manifest": "airflow_s3commit",
    },
    "protocol.records": {
        "CommittedTask": "airflow_s3commit",
        "JobOptions": "airflow_s3commit",
        "JobReference": "airflow_s3commit",
        "ManifestRecord": "airflow_s3commit",
        "ObjectOptions": "airflow_s3commit",
    },
    "protocol.signing": {"HmacSigner": "airflow_s3commit", "Signer": "airflow_s3commit"},
    "protocol.sweep": {"sweep": "airflow_s3commit"},
    "protocol.task_attempt": {"TaskAttempt": "airflow_s3commit"},
    "protocol.upload": {"OutputFile": "airflow_s3commit"},
    "protocol.verify": {"verify_manifest": "airflow_s3commit"},
    "reader.table": {"dataset": "airflow_s3commit"},
    "retry_policy": {"commit_retry_policy": "airflow_s3commit.task_group"},
    "sensors.search": {"ManifestSearch": "airflow_s3commit.protocol.watch.search"},
    "sensors.success_manifest": {"S3SuccessManifestSensor": "airflow_s3commit.sensors"},
    "sensors.view": {"DestinationView": "airflow_s3commit.protocol.watch.new_manifests:Snapshot"},
    "sensors.wanted": {"Wanted": "airflow_s3commit.protocol.watch.search:Criteria"},
    "spark.datasource": {"S3CommitDataSource": "airflow_s3commit.spark"},
    "spark.pending": {
        "PendingWrite": "airflow_s3commit.spark",
        "write_pending": "airflow_s3commit.spark",
    },
    "spark.row_batches": {"batch_conf": "airflow_s3commit.spark"},
    "spark.session": {"committer_conf": "airflow_s3commit.spark"},
    "spark.shipping": {"py_files": "airflow_s3commit.spark"},
    "spark.streaming": {"foreach_batch": "airflow_s3commit.spark"},
    "store.connection": {"S3Config": "airflow_s3commit"},
    "store.memory": {"MemoryStore": "airflow_s3commit"},
    "store.s3": {"S3Config": "airflow_s3commit", "S3Store": "airflow_s3commit"},
    "tables.plain": {"write_table": "airflow_s3commit.tables.write"},
    "triggers.success_manifest": {
        "S3SuccessManifestEventTrigger": "airflow_s3commit.triggers",
        "S3SuccessManifestTrigger": "airflow_s3commit.triggers",
    },
}


class MovedModules:
    """Finder and loader of modules that no longer exist; each forwards its old names with a warning.

    Args:
        table: The old modules and where their names are now, in the form of `MOVED`.

    """

    def __init__(self, table: Mapping[str, Mapping[str, str]]) -> None:
        self._table = table

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the table, or None for any other module."""
        if not name.startswith(_PACKAGE) or name.removeprefix(_PACKAGE) not in self._table:
            return None
        from importlib.machinery import ModuleSpec  # noqa: PLC0415 - few processes need it

        return ModuleSpec(name, self)  # type: ignore[arg-type]  # it has the methods of a loader

    def create_module(self, _spec: ModuleSpec) -> None:
        """Return None: the import system creates an ordinary, empty module."""

    def exec_module(self, module: ModuleType) -> None:
        """Make the module forward its old names."""
        old = module.__name__.removeprefix(_PACKAGE)
        module.__getattr__ = forwarding(old, self._table)  # type: ignore[method-assign]
        module.__dict__["__all__"] = sorted(self._table[old])


def forwarding(old: str, table: Mapping[str, Mapping[str, str]] = MOVED) -> Callable[[str], Any]:
    """Return a ``__getattr__`` that forwards the old names of a module, each with a `DeprecationWarning`.

    It raises `AttributeError` for any other name.

    Args:
        old: The old module, without the package's name.
        table: The old modules and where their names are now, in the form of `MOVED`.

    """
    homes = table[old]

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {_PACKAGE + old!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415
        from warnings import warn  # noqa: PLC0415

        home, _, renamed = homes[name].partition(":")
        new = renamed or name
        message = f"{_PACKAGE}{old}.{name} has moved and will be removed; use: from {home} import {new}"
        warn(message, DeprecationWarning, stacklevel=2)
        return getattr(import_module(home), new)

    return get


def install() -> None:
    """Add a finder for the modules of `MOVED` after all other finders of this process. Repeatable."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules(MOVED))


def ignored(name: str, value: object | None) -> None:
    """Warn about an argument that no longer has an effect, if it is given; names the caller's caller."""
    if value is not None:
        from warnings import warn  # noqa: PLC0415

        warn(f"{name} no longer has an effect, and will be removed", DeprecationWarning, stacklevel=3)
