"""Checkpoints of a Delta log, by the library deltalake if it is installed: readers begin at the newest one.

A checkpoint is derived from versions and never needed, so nothing here fails. It is made of a copy of the log
on the local disk: the library needs no credentials.
"""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct

from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.model.codec import GIB, KIB, MIB, Count, decode
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import delta_version, version_key, versions_prefix
from airflow_s3commit.store.base import ObjectInfo, ObjectStore

logger = logging.getLogger(__name__)

#: Versions, or bytes of them, after which a checkpoint is made.
MOST_VERSIONS = 100
MOST_BYTES = 32 * MIB

#: Whether one is due is looked up after this number of versions, and after a large one.
LOOK_EVERY = 10
_LARGE = MIB

#: Bytes of one object of the log that are read.
_OBJECT_BYTES = 5 * GIB


class LastCheckpoint(Struct, frozen=True):
    """``_last_checkpoint``: the version of the newest checkpoint, in Delta's format."""

    version: Count


def checkpoint_if_due(context: JobContext, version: int, size: int) -> None:
    """Write a checkpoint up to a version that was written, if there are many or large ones since the last.

    Args:
        context: Any job of the destination.
        version: The version.
        size: Its bytes.
    """
    if not version or (version % LOOK_EVERY and size < _LARGE):
        return
    home = context.layout.destination
    try:
        since, waiting = _waiting(context.store, home)
        total = sum(info.size for info in waiting)
        if len(waiting) >= MOST_VERSIONS or total >= MOST_BYTES:
            _write(context.store, home, since, waiting, total)
    except Exception as error:
        # Whatever the library raises, and a full disk.
        logger.warning("%s: no checkpoint of its Delta log: %s", home.uri, error)


def _waiting(store: ObjectStore, home: Destination) -> tuple[int | None, list[ObjectInfo]]:
    """Return the version of the newest checkpoint, and the versions after it."""
    key = f"{versions_prefix(home)}_last_checkpoint"
    try:
        since = decode(LastCheckpoint, store.get(home.bucket, key, limit=64 * KIB).body, key).version
    except NoSuchKey:
        since = None
    after = version_key(home, since) if since is not None else None
    listed = store.list_objects(home.bucket, versions_prefix(home), recursive=False, start_after=after)
    return since, [info for info in listed if info.key.endswith(".json")]


def _write(
    store: ObjectStore, home: Destination, since: int | None, waiting: list[ObjectInfo], total: int
) -> None:
    try:
        from deltalake import DeltaTable  # noqa: PLC0415 - large, and optional
    except ImportError:
        if total >= MOST_BYTES:
            logger.warning(
                "%s: the Delta log has %d MiB without a checkpoint, which every reader reads: install"
                " airflow-s3commit[delta] where jobs are committed",
                home.uri,
                total // MIB,
            )
        return
    prefix = versions_prefix(home)
    with TemporaryDirectory() as folder:
        log = Path(folder, "_delta_log")
        log.mkdir()
        keys = [info.key for info in waiting]
        if since is not None:
            keys += [f"{prefix}{since:020}.json", f"{prefix}{since:020}.checkpoint.parquet"]
            keys.append(f"{prefix}_last_checkpoint")
        for key in keys:
            (log / key.removeprefix(prefix)).write_bytes(
                store.get(home.bucket, key, limit=_OBJECT_BYTES).body
            )
        known = {file.name for file in log.iterdir()} - {"_last_checkpoint"}
        DeltaTable(folder).create_checkpoint()
        made = sorted(file for file in log.iterdir() if file.name not in known)
        # The one that names the others comes last.
        for file in sorted(made, key=lambda one: one.name == "_last_checkpoint"):
            version = delta_version(home, prefix + file.name)
            if version is not None or file.name == "_last_checkpoint":
                kind = "application/json" if version is None else "application/octet-stream"
                store.put(home.bucket, prefix + file.name, file.read_bytes(), content_type=kind)
    logger.info("%s: a checkpoint of %d versions of its Delta log is written", home.uri, len(waiting))
