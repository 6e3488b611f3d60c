"""The object store interface and its implementations; the only package that imports boto3."""

from __future__ import annotations
