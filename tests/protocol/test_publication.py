"""Statements by which engines get to know a table."""

from __future__ import annotations

import pytest

from airflow_s3commit import Destination, InvalidOption
from airflow_s3commit.protocol.publication import ENGINES, ddl
from tests.cases import each

FLIGHTS = Destination.parse("s3://lake/nyc/flights-2013/")


@each("engine", ENGINES)
def test_each_engine_is_told_where_the_table_is(engine: str) -> None:
    """The statements have the table's place and name; without one, that of its directory."""
    assert FLIGHTS.prefix in ddl(engine, FLIGHTS)
    assert "flights_2013" in ddl(engine, FLIGHTS)
    assert "delays" in ddl(engine, FLIGHTS, "lake.delays")


@each("name", ["flights; DROP TABLE x", "a'b", "1st", "a.b.c.d", "a b"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    """What would be more than a name is in no statement."""
    with pytest.raises(InvalidOption, match="cannot be in a statement"):
        ddl("athena", FLIGHTS, name)


def test_a_quote_in_the_destination_is_refused() -> None:
    """It would end the text that has the destination."""
    with pytest.raises(InvalidOption, match="cannot be in a statement"):
        ddl("trino", Destination.parse("s3://lake/it's/"), "flights")
