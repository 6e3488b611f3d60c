"""Tables that are published, and an independent reading of their Delta log."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from airflow_s3commit import Destination, MemoryStore
from airflow_s3commit.protocol.model.codec import LINE_BYTES
from airflow_s3commit.protocol.model.job import Position
from airflow_s3commit.protocol.model.sealed_job import SparkField, SparkSchema, WrittenColumns
from airflow_s3commit.protocol.steps.files import files_in
from airflow_s3commit.protocol.steps.fold import entries_after, read_table


def columns(*fields: tuple[str, Any], partitions: tuple[str, ...] = ("dt",), form: str = "parquet") -> str:
    """Return the text of a schema with these columns, and the partition columns among them."""
    schema = SparkSchema(fields=[SparkField(name=name, type=kind) for name, kind in fields])
    return WrittenColumns(format=form, spark=schema, partitions=[*partitions], arrow="").text()


def versions(store: Any, uri: str) -> dict[int, list[dict[str, Any]]]:
    """Return the actions of each version that is there, in their order."""
    home = Destination.parse(uri)
    found = {}
    for info in list(store.list_objects(home.bucket, f"{home.prefix}_delta_log/")):
        name = info.key.rpartition("/")[2]
        if name.endswith(".json"):
            body = store.get(home.bucket, info.key, limit=LINE_BYTES).body
            found[int(name.removesuffix(".json"))] = [json.loads(line) for line in body.splitlines()]
    return dict(sorted(found.items()))


def replayed(store: Any, uri: str) -> list[set[str]]:
    """Return the keys that are in the table at each version: the versions are gapless, and add up."""
    home, files, tables = Destination.parse(uri), set[str](), []
    for number, (version, actions) in enumerate(versions(store, uri).items()):
        assert version == number
        for action in actions:
            if "remove" in action:
                files.remove(home.prefix + unquote(action["remove"]["path"]))
        for action in actions:
            if "add" in action:
                key = home.prefix + unquote(action["add"]["path"])
                assert key not in files
                files.add(key)
        tables.append({*files})
    return tables


def generations(store: Any, uri: str) -> list[set[str]]:
    """Return the keys that are in the table at each entry since it was published, by the log."""
    home, tables = Destination.parse(uri), []
    for read in entries_after(store, home, Position()):
        if read.entry.published:
            table = read_table(store, home, read.entry.number)
            tables.append({file.key for file in files_in(store, home, table.sources, table.live)})
    return tables


def without_versions(store: MemoryStore, uri: str) -> dict[str, bytes]:
    """Return all objects but the versions."""
    home = Destination.parse(uri)
    return {
        info.key: store.get(home.bucket, info.key, limit=LINE_BYTES).body
        for info in list(store.list_objects(home.bucket, home.prefix))
        if "/_delta_log/" not in info.key
    }
