"""The store of an executor's process: connected once, used by every task that runs in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_s3commit.spark.session import StoreSettings
    from airflow_s3commit.store.base import ObjectStore

__all__ = ["forget_store", "store_of_process"]

# By process id too: Spark forks its Python workers, and a forked client shares sockets with its parent.
_STORES: dict[tuple[int, StoreSettings], ObjectStore] = {}


def store_of_process(settings: StoreSettings) -> ObjectStore:
    """Return this process's store for these settings, with credentials from the process's own chain."""
    key = (os.getpid(), settings)
    if key not in _STORES:
        # boto3 takes a third of a second to import, and the process that only plans a write needs none.
        from airflow_s3commit.store.s3 import S3Config, S3Store  # noqa: PLC0415

        _STORES[key] = S3Store.connect(
            S3Config(
                endpoint_url=settings.endpoint_url,
                region=settings.region,
                path_style=settings.path_style,
            )
        )
    return _STORES[key]


def forget_store(settings: StoreSettings) -> None:
    """Connect anew, and look for credentials anew, when these settings are asked for again.

    A store keeps the credentials it found; those of a file or the environment it would keep for ever. A
    Python worker that met expired ones ends with its task, and its successor looks by itself; a driver lives
    on.
    """
    _STORES.pop((os.getpid(), settings), None)
