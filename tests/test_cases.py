"""A test of many cases runs them all, and says which fail."""

from __future__ import annotations

import pytest

from tests.cases import each


def test_every_case_that_fails_is_reported() -> None:
    """The failures of all cases come together, each with its case, and those that pass are run too."""
    seen = []

    @each("second", [10, 20])
    @each(("first", "wanted"), [(1, True), (2, False), (3, False)])
    def check(first: int, wanted: bool, second: int) -> None:
        seen.append((first, second))
        assert wanted or second == 20

    with pytest.raises(BaseExceptionGroup, match="1 of 2 cases") as raised:
        check()
    assert len(seen) == 6
    (inner,) = raised.value.exceptions
    assert isinstance(inner, BaseExceptionGroup)
    assert inner.__notes__ == ["case: {'second': 10}"]
    assert [error.__notes__[0] for error in inner.exceptions] == [
        "case: {'first': 2, 'wanted': False}",
        "case: {'first': 3, 'wanted': False}",
    ]


def test_what_pytest_itself_refuses_is_a_failure() -> None:
    """A case where an expected exception does not come fails, and the next case still runs."""
    seen = []

    @each("number", [1, 2])
    def check(number: int) -> None:
        seen.append(number)
        with pytest.raises(ValueError, match="x"):
            pass

    with pytest.raises(BaseExceptionGroup, match="2 of 2 cases"):
        check()
    assert seen == [1, 2]


def test_no_cases_are_an_error() -> None:
    """A test without cases would test nothing: it cannot be written."""
    with pytest.raises(ValueError, match="no cases of path"):
        each("path", [])


@each("number", [1, 2])
def test_fixtures_reach_the_test(number: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A test of many cases has fixtures like any other."""
    assert tmp_path_factory.getbasetemp().is_dir()
