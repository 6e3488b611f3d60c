"""Faults put into the steps on the log alone: the schedules find each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_s3commit.protocol.model.job import AbortReport
from airflow_s3commit.protocol.model.layout import seal_key
from airflow_s3commit.protocol.steps import abort, commit, finish, marker, rollback, seal, sweep, task
from airflow_s3commit.protocol.steps.abort import abort_pending, clean, delete_objects, write_receipt
from tests.protocol.steps.test_history import play_pair as play_history
from tests.protocol.steps.test_schedules import play_late_sealer, play_pair, play_spent_id

REPLACE = ("replace", "replace")


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _task_does_not_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(task, "find_end", _nothing)


def _sealer_does_not_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(seal, "find_end", _nothing)


def _sealer_takes_its_seal_back(patch: pytest.MonkeyPatch) -> None:
    def delete(context: Any, _: Any) -> None:
        context.store.delete(context.bucket, seal_key(context.layout.destination, context.job_id))

    patch.setattr(seal, "_end_again", delete)


def _undo_before_the_entry(patch: pytest.MonkeyPatch) -> None:
    entered = abort.abandon

    def undo_first(context: Any, *rest: Any) -> Any:
        abort_pending(context, None)
        return entered(context, *rest)

    patch.setattr(abort, "abandon", undo_first)


def _receipt_after_the_listing(patch: pytest.MonkeyPatch) -> None:
    def undo(context: Any, entry: Any) -> Any:
        abort_pending(context, None)
        delete_objects(context, abort._published(context), "metadata")
        write_receipt(context.store, context.layout.destination, entry)
        clean(context, entry, None)

    patch.setattr(abort, "undo", undo)


def _deletes_before_the_entry(patch: pytest.MonkeyPatch) -> None:
    complete = commit._complete

    def delete_first(run: Any) -> None:
        complete(run)
        table = run.table_at_head()
        pieces = table.left_by("partitions", run.partitions)
        for file in finish.files_in(run.context.store, run.context.layout.destination, table.sources, pieces):
            run.context.store.delete(run.context.bucket, file.key)

    patch.setattr(commit, "_complete", delete_first)


def _marker_over_a_newer_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(marker, "_is_as_new", lambda *_: False)


def _no_receipt_of_the_newest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("airflow_s3commit.protocol.steps.log.Log.write_receipt", _nothing)


def _rollback_believes_an_older_table(patch: pytest.MonkeyPatch) -> None:
    real, seen = rollback.read_table, {}

    def read(store: Any, home: Any, number: int | None = None) -> Any:
        # A job's own record comes after the first look; until then the table is read as it is.
        if number is None:
            seen["newest"] = real(store, home)
        return real(store, home, number) if number in (None, 1) else seen["newest"]

    patch.setattr(rollback, "read_table", read)


def _sweep_undoes_without_an_entry(patch: pytest.MonkeyPatch) -> None:
    def withdraw(context: Any, _: str) -> AbortReport:
        return AbortReport(uploads=abort_pending(context, None), objects=0)

    patch.setattr(sweep, "abort", withdraw)


#: Each fault, and a play that finds it.
FAULTS: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], None]]] = [
    (_task_does_not_look, lambda: play_pair("abort and a late attempt", REPLACE)),
    (_sealer_does_not_look, lambda: play_pair("abort and a whole job", REPLACE)),
    (_sealer_takes_its_seal_back, play_late_sealer),
    (_undo_before_the_entry, lambda: play_pair("commit and abort", REPLACE)),
    (_receipt_after_the_listing, lambda: play_pair("abort and a late attempt", REPLACE)),
    (_deletes_before_the_entry, lambda: play_pair("commit and abort", REPLACE)),
    (_marker_over_a_newer_one, lambda: play_pair("commit and a rival's commit", REPLACE)),
    (_no_receipt_of_the_newest, play_spent_id),
    (_rollback_believes_an_older_table, lambda: play_history("rollback and a release")),
    (_sweep_undoes_without_an_entry, lambda: play_history("sweep of the dead and a commit")),
]


@pytest.mark.parametrize(("put_in", "search"), FAULTS, ids=[one.__name__[1:] for one, _ in FAULTS])
def test_a_fault_in_a_step_is_found(
    put_in: Callable[[pytest.MonkeyPatch], None], search: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedules of a pair of processes fail where a step breaks one rule of the protocol."""
    put_in(monkeypatch)
    with pytest.raises(AssertionError):
        search()
