"""The seam to S3: the only home of boto3."""

from __future__ import annotations
