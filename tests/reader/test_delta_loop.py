"""A reader of the Delta log, again and again while a real store's table is replaced."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from airflow_s3commit import JobOptions, write_table

deltalake = pytest.importorskip("deltalake")

pytestmark = [pytest.mark.seaweedfs]

PARTITIONS, FILES = 2, 20

#: Reads for each replace.
READS = 10


def rows_of(number: int) -> pa.Table:
    """Return a row for each file of a commit, all with its number."""
    names = [f"d{partition}" for partition in range(PARTITIONS) for _ in range(FILES)]
    return pa.table({"dt": names, "number": [number] * len(names)})


@pytest.mark.parametrize("reads", [60, pytest.param(1_000, marks=pytest.mark.all)])
def test_no_read_is_torn(reads: int, seaweed: Any, seaweed_store: Any, bucket: str, prefix: str) -> None:
    """With retained files, each read during replaces of all files sees exactly one commit's rows."""
    uri = f"s3://{bucket}/{prefix}table/"
    options = JobOptions(conflict_mode="replace", publish="delta", retain="2h")
    replaces, numbers = threading.Semaphore(2), iter(range(reads))

    def replace() -> None:
        written = {"partition_by": ["dt"], "options": {"maxRecordsPerFile": "1"}, "job_options": options}
        write_table(rows_of(next(numbers)), uri, store=seaweed_store, **written)

    def replace_in_turn() -> None:
        for _ in range(reads // READS):
            replaces.acquire()
            replace()

    config = seaweed.config
    storage = {
        "AWS_ENDPOINT_URL": config.endpoint_url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": config.region or "us-east-1",
        "AWS_ACCESS_KEY_ID": config.access_key,
        "AWS_SECRET_ACCESS_KEY": config.secret_key,
    }
    replace()
    seen: list[list[int]] = []
    writer = threading.Thread(target=replace_in_turn)
    writer.start()
    for number in range(reads):
        table = deltalake.DeltaTable(uri, storage_options=storage).to_pyarrow_table(columns=["number"])
        seen.append(table["number"].to_pylist())
        if number % READS == 0:
            replaces.release()
    writer.join()
    whole = [numbers for numbers in seen if len(numbers) == PARTITIONS * FILES and len(set(numbers)) == 1]
    assert len(whole) == reads
    assert len({numbers[0] for numbers in whole}) > 2
