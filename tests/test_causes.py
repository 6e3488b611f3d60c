"""Of two errors the first is raised, and its notes have the second."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from airflow_s3commit._causes import add_failure, ending, run_all, undoing, whole_text
from airflow_s3commit.exceptions import AccessDenied, Unavailable

_Guard = Callable[[Callable[[], object], str, str], AbstractContextManager[None]]


def _unavailable() -> None:
    raise Unavailable("the store\nis gone")


@pytest.mark.parametrize("guard", [undoing, ending])
@pytest.mark.parametrize("first", [AccessDenied("no"), KeyboardInterrupt("stop"), OSError("disk")], ids=repr)
def test_a_clean_up_that_fails_is_a_note(guard: _Guard, first: BaseException) -> None:
    """Whatever the first error is it is raised, with one line that says what failed then and what is left."""
    with pytest.raises(type(first)) as caught, guard(_unavailable, "tidying", "a file is left"):
        raise first
    assert caught.value is first
    assert caught.value.__notes__ == ["tidying failed too (Unavailable: the store is gone): a file is left"]
    assert "tidying failed too" in "".join(traceback.format_exception(caught.value))


def test_a_clean_up_alone_raises_its_own_error() -> None:
    """Without a first error `ending` cleans up and raises what that raises; `undoing` does not clean up."""
    with pytest.raises(Unavailable), ending(_unavailable, "tidying", "a file is left"):
        pass
    with undoing(_unavailable, "tidying", "a file is left"):
        pass


def test_every_step_is_run() -> None:
    """Steps after one that failed are run, and their failures are notes of the first."""
    done: list[str] = []

    def fails(error: Exception) -> Callable[[], object]:
        def step() -> None:
            raise error

        return step

    steps = [fails(AccessDenied("one")), lambda: done.append("two"), fails(OSError("three"))]
    with pytest.raises(AccessDenied, match="one") as caught:
        run_all(steps, "tidying", "it is left")
    assert done == ["two"]
    assert whole_text(caught.value) == "one; tidying failed too (OSError: three): it is left"


def test_notes_of_the_second_error_are_kept_once() -> None:
    """What the second error says in notes is not lost, and nothing is said twice."""
    first, second = AccessDenied("no"), Unavailable("gone")
    first.add_note("while committing")
    second.add_note("while committing")
    second.add_note("2 uploads are pending")
    add_failure(first, second, "aborting", "they stay")
    add_failure(first, first, "aborting", "they stay")
    assert first.__notes__ == [
        "while committing", "aborting failed too (Unavailable: gone): they stay", "2 uploads are pending",
    ]  # fmt: skip
