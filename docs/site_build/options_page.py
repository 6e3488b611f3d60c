"""References of options: of a job, of Spark's writes, and of what the Spark conf carries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from records_page import fields_table
from tables import cell, code, table

from airflow_s3commit.protocol.model.job import JobOptions, JobReference, ObjectOptions
from airflow_s3commit.provider_info import get_provider_info
from airflow_s3commit.spark.options import WRITE_OPTIONS
from airflow_s3commit.spark.session import committer_conf
from airflow_s3commit.tables.options import TABLE_OPTIONS, Option

_COLUMNS = ("option", "meaning", "default", "formats")


def airflow_config() -> str:
    """Return the options of the section ``[s3commit]`` of Airflow's configuration."""
    sections: Any = get_provider_info()["config"]
    options: dict[str, dict[str, str]] = sections["s3commit"]["options"]
    rows = (
        (
            code(name),
            cell(said["description"]),
            code(said["type"]),
            code(said["default"]) if said["default"] else "",
        )
        for name, said in options.items()
    )
    return table(("option", "meaning", "type", "default"), rows)


def job_options() -> str:
    """Return the options of a job."""
    return fields_table(JobOptions)


def object_options() -> str:
    """Return the options of how a job's objects are kept."""
    return fields_table(ObjectOptions)


def write_options() -> str:
    """Return the options of a write, from the list that reads them."""
    return _table(WRITE_OPTIONS)


def table_options() -> str:
    """Return the options of files, as every writer of tables takes them."""
    return _table(TABLE_OPTIONS)


def spark_conf() -> str:
    """Return what `committer_conf` puts into a Spark conf, by calling it."""
    reference = JobReference(
        job_id="0c9a3b0e-6f0e-4c35-8b0f-3f1f6f6f8a11",
        destination="s3://lake/flights/",
        staging="s3://lake/flights/__magic_job-0c9a3b0e-6f0e-4c35-8b0f-3f1f6f6f8a11/",
    )
    conf = committer_conf(
        reference, "spark", "1", endpoint_url="https://s3.example.org", region="eu-central-1", path_style=True
    )
    return table(("key", "for example"), ((code(key), code(value)) for key, value in conf.items()))


def _table(options: Sequence[Option]) -> str:
    return table(_COLUMNS, _rows(options))


def _rows(options: Sequence[Option]) -> Iterator[tuple[str, ...]]:
    for option in options:
        yield (
            code(option.name),
            cell(f"{option.meaning}{f' ({option.unit})' if option.unit else ''}"),
            code(option.default) if option.default else "",
            cell(", ".join(option.formats)) or "all",
        )
