"""Reading a bucket's lifecycle rules for what they do to pending uploads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["abort_days"]


def abort_days(rules: Iterable[Mapping[str, Any]], prefix: str) -> int | None:
    """Return after how many days pending uploads below ``prefix`` are aborted; None if they never are.

    Of several rules that hold for all of ``prefix``, the shortest counts. Rules that look at tags or sizes
    don't hold for pending uploads, which have neither.

    Args:
        rules: The rules as botocore parsed them.
        prefix: The prefix asked about.

    """
    return min((days for rule in rules if (days := _days(rule, prefix)) is not None), default=None)


def _days(rule: Mapping[str, Any], prefix: str) -> int | None:
    days = rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation")
    if days is None or rule.get("Status") != "Enabled":
        return None
    selection = rule.get("Filter", {})
    selection = selection.get("And", selection)
    if set(selection) - {"Prefix"}:
        return None
    below = selection.get("Prefix", rule.get("Prefix", ""))
    return int(days) if prefix.startswith(below) else None
