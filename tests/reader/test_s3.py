from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow.fs import FileType

from airflow_s3commit import history
from airflow_s3commit.exceptions import NoSuchKey
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.reader import dataset
from airflow_s3commit.reader.table import s3_filesystem
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import S3Store
from tests.protocol.building import an_id
from tests.reader.conftest import write_tables
from tests.store.s3.relay import gateway

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_s3commit.protocol.metadata.pending_uploads import Progress
    from airflow_s3commit.store.s3.store import TransportName
    from airflow_s3commit.testing.s3_server import S3Server

pytestmark = pytest.mark.seaweedfs


def generation(store: S3Store, destination: str, number: int, partitions: int) -> Job:
    """Return a sealed job that puts a file with its number into each partition, in place of what is there."""
    options = JobOptions(committer="magic", conflict_mode="replace")
    job = Job.setup(store, destination, options=options, job_id=an_id(f"run-{number}"))
    rows = pa.table({"generation": pa.array([number] * 3, pa.int32())})
    write_tables(job, {f"hour={hour}/a.parquet": rows for hour in range(partitions)}, part_bytes=5 << 20)
    return job


def test_one_generation_is_seen_while_another_is_committed(
    seaweed: S3Server, seaweed_store: S3Store, bucket: str, prefix: str
) -> None:
    """Opened and read after each upload of the second commit, the dataset is the first job's, and whole."""
    destination = f"s3://{bucket}/{prefix}"
    generation(seaweed_store, destination, 1, 4).commit()
    second = generation(seaweed_store, destination, 2, 4)
    opened_before = dataset(seaweed.config, destination)
    seen: list[tuple[int, list[int]]] = []

    def look(progress: Progress) -> None:
        rows = dataset(seaweed.config, destination).to_table()
        seen.append((rows.num_rows, pc.unique(rows["generation"]).to_pylist()))

    second.commit(progress=look)
    assert seen == [(12, [1])] * 4
    after = dataset(seaweed.config, destination)
    assert after.schema == pa.schema([("generation", pa.int32()), ("hour", pa.int32())])
    assert after.to_table(filter=pc.field("hour") == 2).to_pylist() == [{"generation": 2, "hour": 2}] * 3
    with pytest.raises(
        NoSuchKey, match=f"committed by job {an_id('run-1')}, is gone; if a later commit has replaced it"
    ):
        opened_before.to_table()


def test_a_table_refreshed_a_partition_a_night_is_read_at_each_generation(
    seaweed: S3Server, seaweed_store: S3Store, bucket: str, prefix: str
) -> None:
    """While a night's commit runs the table is that of the night before, and whole; then it is the next."""
    destination = f"s3://{bucket}/{prefix}"

    def rows(**choice: int) -> dict[int, int]:
        found = dataset(seaweed.config, destination, **choice).to_table().to_pylist()
        return {row["hour"]: row["generation"] for row in found}

    def refresh(number: int, hours: range, progress: Callable[[Progress], None] | None = None) -> None:
        options = JobOptions(committer="magic", conflict_mode="replace")
        job = Job.setup(seaweed_store, destination, options=options, job_id=an_id(f"night-{number}"))
        night = pa.table({"generation": pa.array([number], pa.int32())})
        write_tables(job, {f"hour={hour}/a.parquet": night for hour in hours}, part_bytes=5 << 20)
        job.commit(progress=progress)

    refresh(1, range(4))
    expected = dict.fromkeys(range(4), 1)
    for night in range(2, 5):
        seen: list[dict[int, int]] = []
        refresh(night, range(night - 2, night), lambda _, seen=seen: seen.append(rows()))  # type: ignore[misc]
        assert seen == [expected] * 2
        expected = expected | dict.fromkeys(range(night - 2, night), night)
        # Generation 1 is the table before the first night.
        assert rows() == rows(generation=night + 1) == expected
        assert rows(since=night) == dict.fromkeys(range(night - 2, night), night)
    assert [record.generation for record in history(seaweed_store, destination)] == [5, 4, 3, 2]
    assert rows(since=3) == {1: 3, 2: 4, 3: 4}
    with pytest.raises(NoSuchKey, match="at the newest generation"):
        rows(generation=2)


def test_the_filesystem_goes_where_the_clients_do(
    seaweed: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address and keys of the environment are found where the config holds none."""
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    for config in (S3Config(), replace(seaweed.config, region="us-east-1")):
        filesystem = s3_filesystem(config, S3Store.connect(config))
        assert filesystem.region == "us-east-1"
        assert [info.type for info in filesystem.get_file_info([bucket])] == [FileType.Directory]


@pytest.mark.parametrize("way", [("boto3", ""), ("boto3", "//"), ("curl", "/")])
def test_a_store_below_a_path_is_found_by_every_client(
    seaweed: S3Server, seaweed_store: S3Store, bucket: str, prefix: str, way: tuple[TransportName, str]
) -> None:
    """Behind a gateway's path, with or without slashes after it, a job is committed and its table read."""
    (transport, ending), destination = way, f"s3://{bucket}/{prefix}"
    # SeaweedFS cannot check the signature of an odd name below a path, such as a set-up probes.
    job = Job.setup(seaweed_store, destination, job_id=an_id("behind"))
    write_tables(job, {"a.parquet": pa.table({"n": [1, 2]})}, part_bytes=5 << 20)
    with gateway(seaweed.endpoint_url, "/storage/v1.s3") as door:
        config = replace(seaweed.config, endpoint_url=f"{door.endpoint_url}/storage/v1.s3{ending}")
        store = S3Store.connect(config, transport=transport)
        Job.at(store, job.reference).commit()
        assert dataset(config, destination).to_table()["n"].to_pylist() == [1, 2]
    assert store.endpoint == f"{door.endpoint_url}/storage/v1.s3"
