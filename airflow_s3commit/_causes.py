"""Errors during clean-up: they are added as notes to the error that came first, and never replace it.

In every function ``doing`` says what the clean-up was doing, and ``left`` what remains if it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


def add_failure(first: BaseException, second: BaseException, doing: str, left: str) -> None:
    """Add a second error to the first one as a note of one line, followed by the second error's own notes.

    A note that the first error already has is not added again. ``doing`` names what failed, such as
    ``aborting the upload of …``, and ``left`` what that leaves visible or pending.
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
    """Suppress an exception of the block and add it to an earlier error, which the caller then raises."""
    try:
        yield
    except Exception as second:  # KeyboardInterrupt and the like propagate
        add_failure(first, second, doing, left)


@contextmanager
def undoing(clean_up: Callable[[], object], doing: str, left: str) -> Iterator[None]:
    """Clean up if the block raises, then raise the block's error, with the clean-up's error as a note."""
    try:
        yield
    except BaseException as first:
        with noting(first, doing, left):
            clean_up()
        raise


@contextmanager
def ending(clean_up: Callable[[], object], doing: str, left: str) -> Iterator[None]:
    """Clean up after the block, whether it raises or not.

    If both raise, the block's error is raised, with the clean-up's error as a note.
    """
    with undoing(clean_up, doing, left):
        yield
    clean_up()


def run_all(steps: Iterable[Callable[[], object]], doing: str, left: str) -> None:
    """Run every step in order even if some fail, then raise the first error with the later ones as notes."""
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
