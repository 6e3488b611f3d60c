"""Keys of the records below ``_s3commit/``: receipts, records of open jobs, and lists of files.

A writer of data needs none of them: it may be denied everything below this directory but to read receipts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_s3commit.protocol.model.layout import HOME, check_id

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.destination import Destination

#: Stands for a job in the name of the list of the files that are older than the log.
OLDER_DATA = "older-data"


def receipt_key(destination: Destination, job_id: str) -> str:
    """Return the key of a job's receipt: a copy of the entry that ended it, which is never deleted."""
    return destination.key(f"{HOME}/jobs/{check_id(job_id)}.json")


def open_jobs_prefix(destination: Destination) -> str:
    """Return the prefix of the records of all jobs whose clean-up is not finished."""
    return destination.key(f"{HOME}/open/")


def open_prefix(destination: Destination, job_id: str) -> str:
    """Return the prefix of the records of one job whose clean-up is not finished."""
    return f"{open_jobs_prefix(destination)}{check_id(job_id)}/"


def job_key(destination: Destination, job_id: str) -> str:
    """Return the key of a job's `OpenJob`, the last of its records to be deleted."""
    return f"{open_prefix(destination, job_id)}job.json"


def seal_key(destination: Destination, job_id: str) -> str:
    """Return the key of a job's seal."""
    return f"{open_prefix(destination, job_id)}sealed.json"


def lists_prefix(destination: Destination, job_id: str) -> str:
    """Return the prefix of a job's lists of files. At most one of them is named by an entry."""
    return destination.key(f"{HOME}/lists/{check_id(job_id)}-")


def list_key(destination: Destination, job_id: str, sha256: str) -> str:
    """Return the key of a list of files, by its SHA-256: what a key holds never changes."""
    return f"{lists_prefix(destination, job_id)}{sha256}.jsonl"
