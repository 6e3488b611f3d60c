"""Errors keep their cause: what fails after an error becomes a note of it, and never takes its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

__all__ = ["add_failure", "described", "ending", "noting", "run_all", "undoing", "whole_text"]


def add_failure(first: BaseException, second: BaseException, doing: str, left: str) -> None:
    """Add a second error to the one that led to it, as one line; notes of the second follow.

    Args:
        first: The error that is raised.
        second: What failed afterwards.
        doing: What was tried: ``aborting the upload of …``.
        left: What that leaves: what is visible or pending now.

    """
    if second is first:
        return
    said = " ".join(str(second).split())
    known = getattr(first, "__notes__", [])
    for note in (
        f"{doing} failed too ({type(second).__name__}: {said}): {left}",
        *getattr(second, "__notes__", ()),
    ):
        if note not in known:
            first.add_note(note)


def whole_text(error: BaseException) -> str:
    """Return an error's message and its notes, for where no traceback shows them."""
    return "; ".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])


def described(error: BaseException) -> str:
    """Return an error's type, its message and its notes, for reports and pages."""
    return f"{type(error).__name__}: {whole_text(error)}"


@contextmanager
def noting(first: BaseException, doing: str, left: str) -> Iterator[None]:
    """Run what an error makes necessary; its own failure is added to that error and ends the block.

    Args:
        first: The error; the caller raises it afterwards.
        doing: What the block tries.
        left: What is left if it fails.

    """
    try:
        yield
    except Exception as second:  # an interruption is no failure, and goes on
        add_failure(first, second, doing, left)


@contextmanager
def undoing(clean_up: Callable[[], object], doing: str, left: str) -> Iterator[None]:
    """Clean up if the block fails; the block's error is raised either way. See `noting`."""
    try:
        yield
    except BaseException as first:
        with noting(first, doing, left):
            clean_up()
        raise


@contextmanager
def ending(clean_up: Callable[[], object], doing: str, left: str) -> Iterator[None]:
    """Clean up after the block; an error of the block is raised before one of the clean-up. See `noting`."""
    with undoing(clean_up, doing, left):
        yield
    clean_up()


def run_all(steps: Iterable[Callable[[], object]], doing: str, left: str) -> None:
    """Run every step, also after one failed; the first error is raised then, with the others as notes.

    Args:
        steps: The steps.
        doing: What each of them tries.
        left: What is left if one fails.

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
