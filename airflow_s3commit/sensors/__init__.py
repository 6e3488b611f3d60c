"""Waiting for a commit."""

from __future__ import annotations
