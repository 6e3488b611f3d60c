"""What is done when a task or a run fails."""

from __future__ import annotations
