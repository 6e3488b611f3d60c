"""The table of stores in the documentation is that of the last run on them."""

from __future__ import annotations

from dev.stores import BEGIN, END, PAGE, STORES, results, table


def test_the_page_has_the_rows_of_the_results() -> None:
    """Each server has a row, made from the file that its run wrote."""
    found = results()
    assert list(found) == list(STORES)
    assert [found[name].store for name in found] == [store.name for store in STORES.values()]
    assert f"{BEGIN}{table(found)}{END}" in PAGE.read_text()
