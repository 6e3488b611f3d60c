"""Errors during clean-up: they are added as notes to the error that came first, and never replace it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


def add_failure(first: BaseException, second: BaseException, doing: str, left: str) -> None:
    """Add a second error to the first one as a note of one line, followed by the second error's own notes.

    A note that the first error already has is not added again.

    Args:
        first: The error that the caller raises.
        second: The error of the clean-up.
        doing: The step that failed: ``aborting the upload of …``.
        left: What the failed step leaves visible or pending.
    """
    if second is first:
        return
    message = " ".join(str(second).split())
    notes = getattr(first, "__notes__", [])
    for note in (
        f"{doing} failed too ({type(second).__name__}: {message}): {left}",
        *getattr(second, "__notes__", ()),
    ):
        if note not in notes:
            first.add_note(note)


def whole_text(error: BaseException) -> str:
    """Return an error's message and notes on one line, for places that show no traceback."""
    return "; ".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])


def described(error: BaseException) -> str:
    """Return an error's type, message and notes on one line, for reports and pages."""
    return f"{type(error).__name__}: {whole_text(error)}"


@contextmanager
def noting(first: BaseException, doing: str, left: str) -> Iterator[None]:
    """Suppress an exception of the block and add it to an earlier error as a note.

    Args:
        first: The earlier error; the caller raises it after the block.
        doing: What the block does, as for `add_failure`.
        left: What remains if the block fails.
    """
    try:
        yield
    except Exception as second:  # KeyboardInterrupt and the like propagate
        add_failure(first, second, doing, left)


@contextmanager
def undoing(clean_up: Callable[[], object], doing: str, left: str) -> Iterator[None]:
    """Clean up if the block raises, then raise the block's error.

    Args:
        clean_up: The clean-up; its own error becomes a note of the block's error.
        doing: What the clean-up does, as for `add_failure`.
        left: What remains if the clean-up fails.
    """
    try:
        yield
    except BaseException as first:
        with noting(first, doing, left):
            clean_up()
        raise


@contextmanager
def ending(clean_up: Callable[[], object], doing: str, left: str) -> Iterator[None]:
    """Clean up after the block, whether it raises or not.

    If both raise, the block's error is raised, and that of the clean-up becomes a note of it.

    Args:
        clean_up: The clean-up.
        doing: What the clean-up does, as for `add_failure`.
        left: What remains if the clean-up fails.
    """
    with undoing(clean_up, doing, left):
        yield
    clean_up()


def run_all(steps: Iterable[Callable[[], object]], doing: str, left: str) -> None:
    """Run every step even if some fail, then raise the first error with the others as notes.

    Args:
        steps: The steps, run in order.
        doing: What each step does, as for `add_failure`.
        left: What remains if a step fails.
    """
    first: Exception | None = None
    for step in steps:
        try:
            step()
        except Exception as error:
            if first is None:
                first = error
            else:
                add_failure(first, error, doing, left)
    if first is not None:
        raise first
