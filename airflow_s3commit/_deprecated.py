"""Import paths that earlier documentation named: each works for one release, with a `DeprecationWarning`.

A finder behind all others serves the modules of the table that are gone: an import reaches it only where the
module itself does not exist. Where there is still something by the old name (a package in place of a module,
a module that lost names), it forwards by ``__getattr__ = forwarding(…)``; a module in place of a package also
has an empty ``__path__``. To end the support of a path, delete its row.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # not typing's: every process that imports the package imports this
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

__all__ = ["MOVED", "MovedModules", "forwarding", "install"]

_PACKAGE = "airflow_s3commit."

#: Old modules, without the package's name, and the module of each public name today; ``module:name`` where
#: the name has changed too.
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
    "sensors.search": {"ManifestSearch": "airflow_s3commit.protocol.watch.search"},
    "sensors.success_manifest": {"S3SuccessManifestSensor": "airflow_s3commit.sensors"},
    "sensors.view": {"DestinationView": "airflow_s3commit.protocol.watch.snapshot:Snapshot"},
    "sensors.wanted": {"Wanted": "airflow_s3commit.protocol.watch.criteria:Criteria"},
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
    "tables.plain": {"write_table": "airflow_s3commit.tables.rows"},
    "triggers.success_manifest": {
        "S3SuccessManifestEventTrigger": "airflow_s3commit.triggers",
        "S3SuccessManifestTrigger": "airflow_s3commit.triggers",
    },
}


class MovedModules:
    """Finds and loads modules of a table that exist no more: each forwards its names, with a warning.

    Args:
        table: Old modules, without the package's name, and the new module of each of their names.

    """

    def __init__(self, table: Mapping[str, Mapping[str, str]]) -> None:
        self._table = table

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module of the table is loaded; None for any other."""
        if not name.startswith(_PACKAGE) or name.removeprefix(_PACKAGE) not in self._table:
            return None
        from importlib.machinery import ModuleSpec  # noqa: PLC0415 - few processes come here

        return ModuleSpec(name, self)  # type: ignore[arg-type]  # a loader by its methods

    def create_module(self, _spec: ModuleSpec) -> None:
        """Have an ordinary, empty module made."""

    def exec_module(self, module: ModuleType) -> None:
        """Let the module forward its old names."""
        old = module.__name__.removeprefix(_PACKAGE)
        module.__getattr__ = forwarding(old, self._table)  # type: ignore[method-assign]
        module.__dict__["__all__"] = sorted(self._table[old])


def forwarding(old: str, table: Mapping[str, Mapping[str, str]] = MOVED) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module of the table.

    Args:
        old: The module, as the table has it.
        table: The table.

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
    """Serve the table's modules in this process, after everything that finds modules that exist."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules(MOVED))
