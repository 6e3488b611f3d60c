"""Which calls of two processes can be swapped without a difference to either of them or to a rule.

Two schedules that differ in the order of such calls alone are one: both processes read and write the same,
and the rules of `tests/crash/observed.py` look at the same states in the same order.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

__all__ = ["Touch", "commute", "is_seen"]

_LISTINGS = frozenset({"list_objects", "list_uploads"})
_READS = _LISTINGS | {"head", "get", "get_range", "list_parts", "check_bucket", "stale_upload_days"}

#: Verbs on pending uploads alone, which no rule looks at before all is at rest.
_OF_UPLOADS = frozenset({"create_upload", "upload_part", "abort_upload", "list_uploads", "list_parts"})


class Touch(NamedTuple):
    """What a call reads or writes.

    Attributes:
        verb: The verb.
        keys: Its keys; the prefix of a listing.
        ticks: Whether the clock has moved since the call before it, of whichever process.

    """

    verb: str
    keys: tuple[str, ...]
    ticks: bool = False


def is_seen(verb: str, keys: tuple[str, ...]) -> bool:
    """Return whether a call can change what a rule looks at: states, and objects but records of jobs."""
    if verb in _READS or verb in _OF_UPLOADS:
        return False
    return any("/__magic_job-" not in key or key.endswith("/state.json") for key in keys)


@cache
def commute(one: Touch, other: Touch) -> bool:
    """Return whether calls of two processes can be swapped."""
    if one.ticks or other.ticks or "check_bucket" in (one.verb, other.verb):
        return False
    if one.verb in _READS and other.verb in _READS:
        return True
    if is_seen(one.verb, one.keys) and is_seen(other.verb, other.keys):
        return False
    # Completing an upload touches both worlds.
    if one.verb in _OF_UPLOADS and other.verb not in _OF_UPLOADS | {"complete_upload"}:
        return True
    if other.verb in _OF_UPLOADS and one.verb not in _OF_UPLOADS | {"complete_upload"}:
        return True
    return not any(_meet(one, mine, other, theirs) for mine in one.keys for theirs in other.keys)


def _meet(one: Touch, mine: str, other: Touch, theirs: str) -> bool:
    return (
        mine == theirs
        or (one.verb in _LISTINGS and theirs.startswith(mine))
        or (other.verb in _LISTINGS and mine.startswith(theirs))
    )
