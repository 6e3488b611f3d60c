"""One test of one property by many cases, and the errors that are cases of many properties."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest

from airflow_s3commit import exceptions

__all__ = ["ERRORS", "each"]

#: Every error of the package, by its name.
ERRORS = {name: kind for name, kind in sorted(vars(exceptions).items()) if isinstance(kind, type)}

Test = Callable[..., None]


def each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for every case, as one test, and report all the cases that fail.

    For a property of values, which needs no fixture of its own for each case: `pytest.mark.parametrize` would
    make a test of each. Two of these, one above the other, run every combination.

    Args:
        names: The argument of the test, or the arguments, that a case gives.
        cases: The values, or tuples of values. None at all is an error, as it would test nothing.
    """
    arguments = (names,) if isinstance(names, str) else names
    given = [dict(zip(arguments, (case,) if isinstance(names, str) else case, strict=True)) for case in cases]
    if not given:
        raise ValueError(f"no cases of {', '.join(arguments)}")

    def decorate(test: Test) -> Test:
        @wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            failures: list[BaseException] = []
            for case in given:
                try:
                    test(*args, **fixtures, **case)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"case: {case!r}")
                    failures.append(error)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(given)} cases", failures)

        signature = inspect.signature(test)
        kept = [one for name, one in signature.parameters.items() if name not in arguments]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate
