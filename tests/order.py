"""The order in which tests begin: the longest groups first, because what begins late runs alone at the end.

A plugin of pytest. `--no-loadscope-reorder` keeps xdist to this order; by itself it begins with the groups
that have the most tests, and the longest ones have few.
"""

from __future__ import annotations

import pytest

#: The groups that take longest, by name, the longest first.
LONGEST = (
    "airflow-live",
    "spark-cluster",
    "older-airflow",
    "containers",
    "spark",
    "airflow-page",
    "dag_steps",
    "spark-submit",
    "packaging",
    "hadoop",
    "docker-seaweedfs",
    "docs-site",
)


def place_of(item: pytest.Item) -> tuple[int, str, str]:
    """Return what tests are sorted by: the modules of a group stay together and share what they start."""
    marker = item.get_closest_marker("xdist_group")
    if marker is None:
        is_slow = item.get_closest_marker("slow") is not None
        return (len(LONGEST) + (1 if is_slow else 2), "", "")
    group = str(marker.args[0])
    rank = LONGEST.index(group) if group in LONGEST else len(LONGEST)
    return (rank, group, str(item.path))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests; those without a group keep the order that they have, by chance."""
    items.sort(key=place_of)
