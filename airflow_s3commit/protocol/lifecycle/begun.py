"""Jobs of others with a ``begin`` entry: a commit drives them to their ends before its own entry.

Such a job overwrites or deletes old data before its last entry, so no other job may commit to its partitions
meanwhile. There is no lease and no clock: a process does not find out whether the other committer lives, it
does the same steps, which any number of processes may do at once. Waiting first would save requests beside a
live committer, and cost time beside a dead one; nothing shows which it is.

Jobs on other partitions pass one another. So the begun jobs of a destination that have not ended touch
different partitions, and driving one of them never has to drive another.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from airflow_s3commit.exceptions import InvalidRecord, S3CommitError
from airflow_s3commit.protocol.lifecycle.run import CommitRun
from airflow_s3commit.protocol.metadata.state import find_job
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import JobOptions
from airflow_s3commit.protocol.model.layout import Layout, entry_key
from airflow_s3commit.protocol.model.log import LogEntry
from airflow_s3commit.protocol.model.ownership import check_place
from airflow_s3commit.protocol.model.seal import SealRecord

logger = logging.getLogger(__name__)


def touched(options: JobOptions, seal: SealRecord) -> Collection[str] | None:
    """Return the partitions of which a commit changes the files; None for all."""
    is_whole = options.whole_destination and options.conflict_mode != "append"
    return None if is_whole else seal.partitions


def settle_begun(run: CommitRun, partitions: Collection[str] | None) -> None:
    """Drive each begun job on some partitions to its end, and read the log again. Repeatable.

    One whose last entry was read already is driven too: it may not have deleted yet what it replaces.

    Args:
        run: The commit; its log is read.
        partitions: Directories; None for all.

    Raises:
        InvalidRecord: Such a job can be neither finished nor undone: a record of it is damaged or missing.
        S3CommitError: A request failed; run the step again.

    """
    while True:
        found = [e for e in run.log.begun_by_others(partitions) if e.job_id not in run.settled]
        if not found:
            return
        for entry in found:
            drive(run, entry)
        # Its end is the reason to go on: a listing may lack it.
        run.log.read_on()
        for entry in found:
            if run.log.is_open(entry.job_id):
                home = run.context.layout.destination
                raise InvalidRecord(
                    f"{run.context.name}: job {entry.job_id} has begun, by"
                    f" {join_uri(home.bucket, entry_key(home, entry.number))}, and its records are gone from"
                    f" {entry.staging}; give it up with: s3commit abort {home.uri} {entry.job_id}"
                )
            run.settled.add(entry.job_id)


def drive(run: CommitRun, entry: LogEntry) -> None:
    """Drive the job of an entry to its end. Repeatable by any process.

    Args:
        run: A commit of another job.
        entry: The job's ``begin`` or ``commit``.

    Raises:
        InvalidRecord: It can be neither finished nor undone: a record of it is damaged or missing.
        S3CommitError: A request failed; run the step again.

    """
    context = run.context
    assert entry.staging is not None
    layout = Layout(context.layout.destination, Destination.parse(entry.staging), entry.job_id)
    check_place(entry, layout, join_uri(context.bucket, entry_key(layout.destination, entry.number)))
    other = replace(context, layout=layout, record=None)
    logger.info("%s: driving job %s to its end", context.name, entry.job_id)
    try:
        record = find_job(other)
        run.settle(other if record is None else other.as_recorded(record))
    except S3CommitError as error:
        error.add_note(
            f"while driving {other.name} to its end, as {context.name} needs; end that job first:"
            f" s3commit show {layout.destination.uri} {other.job_id}"
        )
        raise
