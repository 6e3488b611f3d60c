"""Judges requests by an IAM policy, as AWS does."""

from __future__ import annotations

import fnmatch
import re
from typing import Any


def allows(policy: dict[str, Any], action: str, resource: str) -> bool:
    """Return whether a statement allows an action on a resource, and none denies it."""
    effects = {
        statement["Effect"]
        for statement in policy["Statement"]
        if action in statement["Action"]
        and any(re.fullmatch(_pattern(named), resource) for named in statement["Resource"])
    }
    return effects == {"Allow"}


def _pattern(named: str) -> str:
    """Return IAM's wildcard pattern as a regular expression; ``${*}`` is a literal star."""
    pieces = re.split(r"(\$\{[*?$]\})", named)
    return "".join(
        re.escape(piece[2]) if piece.startswith("${") else fnmatch.translate(piece)[4:-3] for piece in pieces
    )
