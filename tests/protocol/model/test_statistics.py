"""How the statistics of two files' columns add up."""

from __future__ import annotations

from airflow_s3commit.protocol.model.sealed_job import ColumnStatistics, Counts, add_columns


def test_bounds_and_counts_add_up() -> None:
    """Values and nulls are summed, and the outer bounds are kept."""
    one = ColumnStatistics(values=2, nulls=1, least=3, greatest=7)
    other = ColumnStatistics(values=5, nulls=0, least=-1, greatest=6.5)

    assert one.plus(other) == ColumnStatistics(values=7, nulls=1, least=-1, greatest=7)


def test_a_part_without_values_has_no_bounds_to_add() -> None:
    """A file whose column is all null leaves the other's bounds unchanged."""
    empty = ColumnStatistics(values=0, nulls=4)
    full = ColumnStatistics(values=1, nulls=0, least="a", greatest="b")

    assert (
        empty.plus(full) == ColumnStatistics(values=1, nulls=4, least="a", greatest="b") == full.plus(empty)
    )


def test_unknown_plus_known_is_unknown() -> None:
    """An unknown count or bound in one file makes that of both unknown."""
    one = ColumnStatistics(values=2, nulls=None, least=None, greatest="x")
    other = ColumnStatistics(values=2, nulls=1, least="a", greatest="y")

    assert one.plus(other) == ColumnStatistics(values=4, nulls=None, least=None, greatest="y")


def test_bounds_of_values_that_were_not_counted_count() -> None:
    """A part of which the number of values is unknown is not taken for one without values."""
    one, other = ColumnStatistics(least=1, greatest=3), ColumnStatistics(least=2, greatest=4)

    assert one.plus(other) == other.plus(one) == ColumnStatistics(least=1, greatest=4)


def test_decimals_are_compared_as_numbers() -> None:
    """Of the decimals 9.50 and 10.25 the latter is greater, though its text sorts first."""
    one = ColumnStatistics(values=1, nulls=0, least="9.50", greatest="9.50", decimal=True)
    other = ColumnStatistics(values=1, nulls=0, least="10.25", greatest="10.25", decimal=True)

    both = one.plus(other)

    assert (both.least, both.greatest) == ("9.50", "10.25")


def test_bounds_of_different_kinds_are_not_compared() -> None:
    """A number and a text, or a decimal and plain text, have no common bound."""
    number = ColumnStatistics(values=1, nulls=0, least=1, greatest=1)
    text = ColumnStatistics(values=1, nulls=0, least="1", greatest="1")
    decimal = ColumnStatistics(values=1, nulls=0, least="1", greatest="1", decimal=True)

    damaged = ColumnStatistics(values=1, nulls=0, least="x", greatest="y", decimal=True)

    assert number.plus(text).least is None
    assert decimal.plus(damaged).least is None
    assert decimal.plus(text).greatest is None


def test_only_columns_that_both_have_are_added() -> None:
    """A column that one file lacks is left out of the sum."""
    known = ColumnStatistics(values=1, nulls=0)

    assert add_columns({"a": known, "b": known}, {"a": known}) == {"a": known.plus(known)}
    assert add_columns({"a": known}, None) is None


def test_a_part_without_files_takes_no_statistics_away() -> None:
    """An empty task says nothing of the columns of others."""
    full = Counts(files=1, bytes=9, rows=2, columns={"a": ColumnStatistics(values=2, nulls=0)})

    assert Counts().plus(full) == full.plus(Counts()) == Counts.total([full]) == full
