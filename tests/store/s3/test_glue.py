"""A table of Glue and its partitions, on moto's Glue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_s3commit import GlueTable
from airflow_s3commit.exceptions import OutcomeUnknown, StoreRejected
from tests.moto_glue import FORMAT, flights, glue_client, registered


@pytest.fixture
def glue() -> Iterator[Any]:
    """Return a client of an account with a table."""
    with glue_client() as client:
        yield client


class Failing:
    """Glue, of whose batches the first partition fails some times."""

    def __init__(self, client: Any, times: int, code: str) -> None:
        self._client, self._left, self._code = client, times, code
        self.sizes: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def batch_create_partition(self, **request: Any) -> Any:
        return self._send("batch_create_partition", "PartitionInputList", request)

    def batch_delete_partition(self, **request: Any) -> Any:
        return self._send("batch_delete_partition", "PartitionsToDelete", request)

    def _send(self, name: str, field: str, request: Any) -> Any:
        batch = request[field]
        self.sizes.append(len(batch))
        failing = batch[:1] if self._left else []
        self._left -= len(failing)
        answer = getattr(self._client, name)(**{**request, field: batch[len(failing) :]})
        detail = {"ErrorCode": self._code, "ErrorMessage": "no"}
        errors = [{"PartitionValues": one["Values"], "ErrorDetail": detail} for one in failing]
        return {"Errors": [*answer.get("Errors", ()), *errors]}


def days(number: int) -> list[tuple[str, ...]]:
    """Return the values of some partitions."""
    return [(f"{day:03}",) for day in range(number)]


def names(values: list[tuple[str, ...]]) -> list[str]:
    """Return their directories."""
    return [f"dt={value}" for (value,) in values]


def test_partitions_are_added_and_removed_in_batches_that_glue_takes(glue: Any) -> None:
    """They have the table's format and a location below it; a repetition changes nothing."""
    client = Failing(glue, 0, "")
    table = flights(client)
    for _ in range(2):
        table.add(days(230), names(days(230)))
    assert client.sizes == [100, 100, 30] * 2
    assert sorted(table.partitions()) == days(230)
    assert table.location_of(("007",)) == "s3://lake/flights/dt=007"
    first = glue.get_partitions(DatabaseName="lake", TableName="flights")["Partitions"][0]
    assert first["StorageDescriptor"]["SerdeInfo"] == FORMAT
    client.sizes.clear()
    for _ in range(2):
        table.remove(days(60))
    assert client.sizes == [25, 25, 10] * 2
    assert len(registered(glue)) == 170


def test_what_failed_of_a_batch_is_sent_again(glue: Any) -> None:
    """Only that; what fails each time raises, with the reason."""
    client = Failing(glue, 2, "InternalServiceException")
    flights(client).add(days(3), names(days(3)))
    assert client.sizes == [3, 1, 1]
    assert len(registered(glue)) == 3
    failing = flights(Failing(glue, 9, "InternalServiceException"))
    with pytest.raises(OutcomeUnknown, match=r"1 of 3 partitions failed, such as 000: Internal"):
        failing.remove(days(3))
    assert set(registered(glue)) == {"000"}


def test_a_table_that_is_not_there_is_an_error_of_ours(glue: Any) -> None:
    """The error names the operation and the table."""
    with pytest.raises(StoreRejected, match=r"GetTable of the table lake\.nothing: EntityNotFound"):
        _ = GlueTable(glue, "lake", "nothing", catalog_id="123456789012").location
