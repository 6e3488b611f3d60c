"""The longest groups of tests begin first, and their modules stay together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.order import LONGEST, pytest_collection_modifyitems

ROOT = Path(__file__).parent


@pytest.fixture
def named(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Return the names of some tests in the order in which they begin."""
    shared = pytest.Module.from_parent(request.session, path=tmp_path / "test_a.py")
    other = pytest.Module.from_parent(request.session, path=tmp_path / "test_b.py")
    items = []
    for name, module, *marks in (
        ("alone", shared),
        ("slow", shared, pytest.mark.slow),
        ("small", shared, pytest.mark.xdist_group("small")),
        ("later b", other, pytest.mark.xdist_group(LONGEST[1])),
        ("later a", shared, pytest.mark.xdist_group(LONGEST[1])),
        ("later b too", other, pytest.mark.xdist_group(LONGEST[1])),
        ("first", other, pytest.mark.xdist_group(LONGEST[0])),
    ):
        item = pytest.Function.from_parent(module, name=name, callobj=lambda: None)
        for mark in marks:
            item.add_marker(mark)
        items.append(item)
    pytest_collection_modifyitems(items)
    return [item.name for item in items]


def test_the_longest_groups_begin_and_modules_stay_together(named: list[str]) -> None:
    """After the named groups come the others, then single tests, those that take seconds first."""
    assert named == ["first", "later a", "later b", "later b too", "small", "slow", "alone"]


def test_every_group_that_is_named_exists() -> None:
    """A group with a new name would begin last unnoticed."""
    texts = (path.read_text() for path in ROOT.rglob("test_*.py"))
    groups = {name for text in texts for name in re.findall(r'xdist_group\("([\w-]+)"\)', text)}
    assert set(LONGEST) <= groups
