"""What anyone who may write to the prefix could make of a record: every field, with every hostile value.

The fields are read off the types of the records: one that a record gets tomorrow is covered tomorrow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import msgspec
from msgspec import inspect

from airflow_s3commit import FileEntry
from tests.hostile.scene import BEFORE, FOREIGN_KEY, INNOCENT, KEPT, Mutation, Scene, Site
from tests.protocol.building import BUCKET, HOME, ROOT, THEIRS

__all__ = ["BODIES", "VALUES", "mutations"]

Path: TypeAlias = tuple[str | int, ...]

#: How many of a body's changes go through each door.
_PARTS = 4

_RAW = "@@raw@@"


@dataclass(frozen=True, slots=True)
class Raw:
    """JSON that Python's own encoder would not write."""

    text: bytes


_ABSENT = object()

#: Values for a field of any type. Each reaches every door, in some field.
VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "minus one": -1,
    "10^9": 10**9,
    "2^63": 2**63,
    "2^64": 2**64,
    "10^400": 10**400,
    "1e308": 1e308,
    "NaN": Raw(b"NaN"),
    "Infinity": Raw(b"Infinity"),
    "1e999": Raw(b"1e999"),
    "empty text": "",
    "1 MB": "x" * 1_000_000,
    "control characters": "\x00\x01\x1b[2J\r\n\u2028",
    "lone surrogate": Raw(b'"\\ud800 x"'),
    "bytes that are no UTF-8": Raw(b'"\xff\xfe"'),
    "deep": Raw(b"[" * 20_000 + b"]" * 20_000),
    "deep objects": Raw(b'{"x":' * 20_000 + b"1" + b"}" * 20_000),
    "less deep": Raw(b'{"x":' * 500 + b"1" + b"}" * 500),
    "list": [],
    "list of null": [None],
    "object": {},
    "another job": THEIRS,
    "another bucket": "other",
    "another store": "https://evil.example/x",
    "the bucket": f"s3://{BUCKET}/",
    "an innocent dataset": f"s3://{BUCKET}/{INNOCENT}",
    "another job's staging": f"s3://{BUCKET}/{ROOT}__magic_job-{THEIRS}/",
    "an innocent key": FOREIGN_KEY,
    "a key of a partition that is not touched": KEPT,
    "a hidden key": f"{HOME}jobs/{BEFORE}.json",
    "a way up": "../innocent/dt=1/data.csv",
    "a state": "committed",
    "a state before": "open",
    "a mode": "as-written",
    "not a number": "sNaN",
    "left out": _ABSENT,
}

#: Bodies for any record.
BODIES: dict[str, Any] = {
    "empty": b"",
    "no JSON": b"\xff\xfe\x00",
    "null": b"null",
    "a list": b"[]",
    "a number": b"1e999",
    "deep": b"[" * 100_000,
    "huge": None,
}


def mutations(scene: Scene) -> Iterator[tuple[str, list[Callable[[], Mutation]]]]:
    """Yield the name of each field of each kind of record in a scene, and all that becomes of it.

    The body counts as a field, in as many parts as that each of its changes has its turn.
    """
    for site in scene.sites:
        body, kind = scene.body(site), site.kind.__name__
        bodies = [partial(_same, mutation) for mutation in _bodies(site, body)]
        yield from ((f"{kind} body {part}", bodies[part::_PARTS]) for part in range(_PARTS))
        plain = msgspec.json.decode(body.splitlines()[0] if site.lines else body)
        for path, is_key in _fields(inspect.type_info(site.kind), plain, ()):
            yield (
                f"{kind} {_words(path, is_key=is_key)}",
                [
                    partial(_changed, site, plain, path, name, is_key=is_key)
                    for name, value in VALUES.items()
                    if not is_key or isinstance(value, str) or name == "lone surrogate"
                ],
            )


def _same(mutation: Mutation) -> Mutation:
    return mutation


def _changed(site: Site, plain: Any, path: Path, name: str, *, is_key: bool) -> Mutation:
    value = VALUES[name]
    body = _without(plain, path) if value is _ABSENT else _with(plain, path, value, is_key=is_key)
    return Mutation(site, f"{_words(path, is_key=is_key)} = {name}", body)


def _bodies(site: Site, body: bytes) -> Iterator[Mutation]:
    for name, other in BODIES.items():
        yield Mutation(site, f"is {name}", other)
    for cut in (1, len(body) // 2):
        yield Mutation(site, f"{cut} bytes are cut off", body[:-cut])
    plain = msgspec.json.decode(body.splitlines()[0] if site.lines else body)
    yield Mutation(site, "unknown field", _spelled({**plain, "unknown": {"x": [1]}}))
    yield Mutation(site, "deep unknown field", _spelled({**plain, "unknown": VALUES["deep"]}))
    yield Mutation(site, "unknown version", _spelled({**plain, "version": 99}))
    yield Mutation(site, "a field twice", body.rstrip()[:-1] + b"," + _spelled(plain)[1:])
    if site.lines:
        yield Mutation(site, "a line over and over", body.splitlines()[0] * 2)


def _fields(info: inspect.Type, value: Any, path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the path of every field, and of every entry's key, from types and a record's own values."""
    if isinstance(info, inspect.UnionType):
        for member in info.types:
            if isinstance(member, inspect.StructType | inspect.DictType | inspect.ListType):
                yield from _fields(member, value, path)
    elif isinstance(info, inspect.StructType) and isinstance(value, dict):
        for field in info.fields:
            name = field.encode_name
            yield (*path, name), False
            yield from _fields(field.type, value.get(name), (*path, name))
    elif isinstance(info, inspect.DictType) and isinstance(value, dict) and value:
        name = next(iter(value))
        yield (*path, name), True
        yield (*path, name), False
        yield from _fields(info.value_type, value[name], (*path, name))
    elif isinstance(info, inspect.RawType):
        yield from _fields(inspect.type_info(FileEntry), value, path)
    elif isinstance(info, inspect.ListType) and isinstance(value, list) and value:
        yield (*path, 0), False
        yield from _fields(info.item_type, value[0], (*path, 0))


def _with(plain: Any, path: Path, value: Any, *, is_key: bool) -> bytes:
    copy = json.loads(json.dumps(plain))
    holder = _holder(copy, path)
    if not is_key:
        holder[path[-1]] = value
        return _spelled(copy)
    entry = holder.pop(path[-1])
    if isinstance(value, str):
        holder[value] = entry
        return _spelled(copy)
    holder[_RAW] = entry
    return _spelled(copy).replace(f'"{_RAW}"'.encode(), value.text)


def _without(plain: Any, path: Path) -> bytes:
    copy = json.loads(json.dumps(plain))
    holder = _holder(copy, path)
    if isinstance(holder, list) or path[-1] in holder:
        del holder[path[-1]]
    return _spelled(copy)


def _holder(plain: Any, path: Path) -> Any:
    for step in path[:-1]:
        plain = plain[step]
    return plain


def _spelled(plain: Any) -> bytes:
    raw: list[bytes] = []

    def spell(value: Any) -> Any:
        assert isinstance(value, Raw)
        raw.append(value.text)
        return _RAW

    body = json.dumps(plain, default=spell).encode()
    return body.replace(f'"{_RAW}"'.encode(), raw[0]) if raw else body


def _words(path: Path, *, is_key: bool = False) -> str:
    return f"{'key ' if is_key else ''}{'.'.join(str(step)[:40] for step in path)}"
