"""Waiting for a commit in the triggerer."""

from __future__ import annotations
