"""Begin a dataset's history in the log.

A dataset can be older than its log: another program wrote it, or it was copied here with the log of the
original. Then its first commit here creates a ``baseline`` entry before its own. The baseline names no files,
so that an append does not list the whole table. An empty destination gets none: its history begins with the
first commit.
"""

from __future__ import annotations

import logging

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.lifecycle.run import CommitRun
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.listing import has_older_data
from airflow_s3commit.protocol.metadata.log import Log, newest_entries, read_entry
from airflow_s3commit.protocol.model.log import Baseline, BaselineReason, LogEntry

logger = logging.getLogger(__name__)


def open_history(run: CommitRun) -> None:
    """Begin the destination's history, unless it has begun. Repeatable by any process.

    After: data that was there before has its baseline.

    Args:
        run: The commit; its log is read.

    Raises:
        InvalidRecord: An entry is damaged.

    """
    context, log = run.context, run.log
    if log.epoch or run.is_history_open:
        return
    while not log.epoch:
        copied = is_copied(context, log)
        if not copied and not has_older_data(context):
            break
        reason: BaselineReason = "copy" if copied else "data"
        number = log.position + 1
        entry = LogEntry(
            **context.layout.place,
            number=number,
            kind="baseline",
            epoch=number,
            baseline=Baseline(reason=reason, since=context.now_ms()),
            nonce=context.new_id(),
        )
        if log.add(entry):
            logger.info("%s: the history begins with entry %d, a baseline (%s)", context.name, number, reason)
    run.is_history_open = True


def is_copied(context: JobContext, log: Log) -> bool:
    """Return whether the log was copied here with its dataset, and has no history of this place yet.

    Raises:
        InvalidRecord: So it was, with retained files, which a baseline would take for data.

    """
    home = context.layout.destination
    # Aborts at the copy may have followed: they begin no history.
    number = log.position - sum(1 for _ in newest_entries(context.store, home, before=log.position + 1))
    if not number:
        return False
    entry = read_entry(context.store, home, number)
    if entry.retaining:
        raise InvalidRecord(
            f"{context.name}: {home.uri} is a copy of {entry.destination}, which retains files that it has"
            " replaced: they would be taken for data. Copy it again: only the files of its newest generation,"
            " which airflow_s3commit.dataset names, and nothing of _s3commit/"
        )
    return True
