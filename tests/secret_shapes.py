"""Secrets of every shape, and a search for them in all that a failure shows."""

from __future__ import annotations

import base64
import traceback
from collections.abc import Iterator
from urllib.parse import quote

__all__ = ["MARK", "SHAPES", "URLS", "chain", "leaks", "shown"]

#: What every secret contains, whatever else is in it.
MARK = "s3cr3t"

#: Values of keys and tokens, by what is special about them.
SHAPES = {
    "plain": f"a-{MARK}-Value/+x9",
    "percent": f"a-{MARK}%2FValue%2Bx9%",
    "long": f"a-{MARK}-" + "Value" * 800,
    "non-ASCII": f"a-{MARK}-Välue-ß日",
    "line end": f"a-{MARK}-Value/+x9\n",
    "line end within": f"a-{MARK}\r\nx-evil: 1",
    "tab": f"a-{MARK}\tValue/+x9",
    "no UTF-8": f"a-{MARK}-\udce4",
}

#: Endpoints with a user name, a password or both in them.
URLS = (
    f"http://me:{MARK}@127.0.0.1:9000",
    f"https://{MARK}@store.example.test",
    f"http://me:{MARK}%2Fx%40y@127.0.0.1",
    f"http://me:{MARK}/x@127.0.0.1:9000",
    f"http://me%3A{MARK}%40127.0.0.1",
    f"me:{MARK}@127.0.0.1:9000",
    f"http://me:{MARK}@127.0.0.1\n",
)


def chain(error: object) -> Iterator[BaseException]:
    """Yield an error, what caused it and what it was raised in, printed by Python or not."""
    seen: list[BaseException | None] = [error if isinstance(error, BaseException) else None]
    for known in seen:
        if known is not None:
            yield known
            seen += [other for other in (known.__cause__, known.__context__) if other not in seen]


def shown(*things: object) -> str:
    """Return what logs and consoles show of some things: of errors the whole traceback, chain and notes."""
    texts = []
    for thing in things:
        if isinstance(thing, BaseException):
            texts += traceback.format_exception(thing)
            for error in chain(thing):
                texts += [repr(error), str(error), *getattr(error, "__notes__", ())]
        else:
            texts += [str(thing), repr(thing)]
    return "\n".join(texts)


def leaks(text: str, secret: str = MARK) -> list[str]:
    """Return the forms of a secret, as it is, in a URL or in base64, that a text holds."""
    raw = secret.encode(errors="surrogateescape")
    forms = {MARK, secret.strip(), quote(raw)}
    for before in range(3):
        # Base64 of it, wherever it begins in what was encoded; its ends depend on what is around it.
        forms.add(base64.b64encode(b"\0" * before + raw).decode().rstrip("=")[4:-2])
    return [form for form in forms if len(form) >= len(MARK) and form in text]
