"""Faults put into the steps on the log alone: the schedules find each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from airflow_s3commit import MemoryStore
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.protocol import table_rollback
from airflow_s3commit.protocol.metadata.context import create_record, find_job
from airflow_s3commit.protocol.model.job import AbortReport
from airflow_s3commit.protocol.model.layout import OPEN_JOBS, seal_key
from airflow_s3commit.protocol.model.table import Table
from airflow_s3commit.protocol.steps import (
    abort,
    append,
    commit,
    finish,
    fold,
    seal,
    setup,
    sweep,
)
from airflow_s3commit.protocol.steps.abort import abort_pending, clean, delete_objects, write_receipt
from airflow_s3commit.protocol.steps.log import read_entry
from airflow_s3commit.store.base import ObjectToDelete
from tests.crash.interleave import ALL
from tests.crash.jobs import Cast
from tests.crash.test_several_jobs import test_a_slow_process_keeps_the_rules as play_slowly
from tests.protocol.steps.test_fold import (
    test_a_listing_that_lags_hides_no_entry as read_beside_a_lagging_listing,
)
from tests.protocol.steps.test_history import play_pair as play_history
from tests.protocol.steps.test_history import (
    test_a_sweep_beside_a_setup_ends_no_living_job as sweep_beside_a_setup,
)
from tests.protocol.steps.test_schedules import (
    play_copied_names,
    play_empty_dataset,
    play_late,
    play_late_completion,
    play_late_sealer,
    play_pair,
    play_slow_abort,
    play_slow_setup,
    play_spent_id,
)
from tests.protocol.test_table_rollback import test_a_commit_meanwhile_refuses as commit_beside_a_rollback

REPLACE = ("replace", "replace")


def play_published(*steps: str) -> None:
    """Play processes, one after the other, on a published table."""
    Cast(steps, ("replace", "replace"), publishes=True).play([(number, ALL) for number in range(len(steps))])


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def _only_create(context: Any, *what: Any, **_: Any) -> Any:
    return create_record(context.store, *what[:3])


def _task_does_not_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(seal, "find_end", _nothing)


def _sealer_does_not_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(seal, "create_unless_ended", _only_create)


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

    patch.setattr(abort, "_undo", undo)


def _deletes_before_the_entry(patch: pytest.MonkeyPatch) -> None:
    complete = commit._complete

    def delete_first(run: Any) -> None:
        complete(run)
        table = run.table_at_head()
        pieces = table.left_by("partitions", run.seal.partitions)
        for file in finish.files_in(run.context.store, run.context.layout.destination, table.sources, pieces):
            run.context.store.delete(run.context.bucket, file.key)

    patch.setattr(commit, "_complete", delete_first)


def _marker_over_a_newer_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(finish, "_is_as_new", lambda *_: False)


def _no_receipt_of_the_newest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(append, "write_receipt", _nothing)


def _rollback_believes_an_older_table(patch: pytest.MonkeyPatch) -> None:
    real, seen = table_rollback.read_table, {}

    def read(store: Any, home: Any, number: int | None = None) -> Any:
        # A job's own record comes after the first look; until then the table is read as it is.
        if number is None:
            seen["newest"] = real(store, home)
        return real(store, home, number) if number in (None, 1) else seen["newest"]

    patch.setattr(table_rollback, "read_table", read)


def _sweep_undoes_without_an_entry(patch: pytest.MonkeyPatch) -> None:
    def withdraw(context: Any, _: str) -> AbortReport:
        return AbortReport(uploads=abort_pending(context, None), objects=0)

    patch.setattr(sweep, "abort", withdraw)


def _objects_before_uploads(patch: pytest.MonkeyPatch) -> None:
    def undo(context: Any, entry: Any) -> AbortReport:
        write_receipt(context.store, context.layout.destination, entry)
        objects = delete_objects(context, abort._published(context), "metadata")
        report = AbortReport(uploads=abort_pending(context, None), objects=objects)
        clean(context, entry, None)
        return report

    patch.setattr(abort, "_undo", undo)


def _a_store_revives_an_aborted_upload(patch: pytest.MonkeyPatch) -> None:
    aborted: dict[str, Any] = {}
    complete = MemoryStore.complete_upload

    def abort_upload(store: MemoryStore, bucket: str, _: str, upload_id: str) -> None:
        if (pending := store._bucket(bucket).uploads.pop(upload_id, None)) is not None:
            aborted[upload_id] = pending

    def complete_upload(store: MemoryStore, bucket: str, key: str, upload_id: str, etags: Any) -> str:
        if upload_id in aborted:
            store._bucket(bucket).uploads[upload_id] = aborted.pop(upload_id)
        return complete(store, bucket, key, upload_id, etags)

    patch.setattr(MemoryStore, "abort_upload", abort_upload)
    patch.setattr(MemoryStore, "complete_upload", complete_upload)


def _removal_worked_out_once(patch: pytest.MonkeyPatch) -> None:
    taken = commit._Run.taken

    def once(run: Any) -> Any:
        run.known_taken = getattr(run, "known_taken", None) or taken(run)
        return run.known_taken

    patch.setattr(commit._Run, "taken", once)


def _release_worked_out_once(patch: pytest.MonkeyPatch) -> None:
    real, seen = sweep.read_table, {}

    def read(store: Any, home: Any, number: int | None = None) -> Any:
        if number is None:
            return real(store, home)
        if (home, id(store)) not in seen:
            seen[home, id(store)] = real(store, home, number)
        elif (last := read_entry(store, home, number)).entry.kind == "release":
            seen[home, id(store)].apply(last.entry, last.sha256)
        return seen[home, id(store)]

    patch.setattr(sweep, "read_table", read)


def _rollback_looks_at_objects(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Table, "can_restore", lambda *_: True)


def _rollback_ignores_a_commit_in_between(patch: pytest.MonkeyPatch) -> None:
    plan = table_rollback.plan_rollback

    class AnyNumber(int):
        def __ne__(self, _: object) -> bool:
            return False

    patch.setattr(
        "airflow_s3commit.protocol.table_rollback.plan_rollback",
        lambda *given: replace(plan(*given), now=AnyNumber()),
    )


def _setup_does_not_look_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(setup, "create_unless_ended", _only_create)


def _sweep_reads_records_first(patch: pytest.MonkeyPatch) -> None:
    find_left, find_jobs, known = sweep.find_left, sweep.find_jobs, set[str]()

    def read_first(context: Any) -> Any:
        prefix = context.layout.destination.key(OPEN_JOBS)
        known.clear()
        known.update(info.key.split("/")[-2] for info in context.store.list_objects(context.bucket, prefix))
        return find_left(context)

    def believe_that(*given: Any, **options: Any) -> Any:
        jobs = find_jobs(*given, **options)
        for job_id in jobs.keys() - known:
            jobs[job_id].record = None
        return jobs

    patch.setattr("tests.protocol.steps.lake.find_left", read_first)
    patch.setattr(sweep, "find_jobs", believe_that)
    # A job without a record seems to be nobody's; that it may be alive would spare it too.
    patch.setattr(sweep.Found, "silent", lambda found, _: 0.0 if found.record else 1e9)


def _receipt_before_the_head(patch: pytest.MonkeyPatch) -> None:
    begin, find, seen = abort.begin_log, abort.find_end, dict[int, Any]()

    def look_first(context: Any, log: Any) -> bool:
        seen[id(context.store)] = find(context)
        return begin(context, log)

    patch.setattr(abort, "begin_log", look_first)
    patch.setattr(abort, "find_end", lambda context: seen.pop(id(context.store)))


def _undo_by_names_alone(patch: pytest.MonkeyPatch) -> None:
    def named(context: Any) -> Any:
        for info in abort.data_objects(context, None):
            if abort.owner_of(info.key) == context.job_id:
                yield ObjectToDelete(info.key, info.etag)

    patch.setattr(abort, "_published", named)


def _an_empty_dataset_gets_no_first_entry(patch: pytest.MonkeyPatch) -> None:
    begin = setup.begin_log

    def begin_unless_empty(context: Any, log: Any, *more: Any) -> bool:
        return any(True for _ in abort.data_objects(context, None)) and begin(context, log, *more)

    patch.setattr(setup, "begin_log", begin_unless_empty)


def _the_record_is_the_flag(patch: pytest.MonkeyPatch) -> None:
    find = seal.find_end
    patch.setattr(seal, "find_end", lambda context: find(context) if find_job(context) is None else None)


def _a_reader_believes_a_listing(patch: pytest.MonkeyPatch) -> None:
    real = fold.entries_after

    def up_to_listed(*given: Any, listed: int = 0) -> Any:
        *place, last = given
        return real(*place, listed if last is None else last, listed=listed)

    patch.setattr(fold, "entries_after", up_to_listed)


def _version_after_the_deletions(patch: pytest.MonkeyPatch) -> None:
    publish, mark = finish.publish, finish.write_marker

    def publish_late(context: Any, key: Any, entry: Any, *rest: Any, **more: Any) -> Any:
        if entry.published:
            publish(context, entry)
        return mark(context, key, entry, *rest, **more)

    patch.setattr(finish, "publish", _nothing)
    patch.setattr(finish, "write_marker", publish_late)


def _no_version_of_the_newest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(append, "publish_if_missing", _nothing)


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
    (_objects_before_uploads, play_late_completion),
    (_a_store_revives_an_aborted_upload, lambda: play_late(("append", "replace"), "late")),
    (_removal_worked_out_once, lambda: play_slowly("a replace that loses its number twice")),
    (_release_worked_out_once, lambda: play_history("rollback and a release")),
    (_rollback_looks_at_objects, lambda: play_history("rollback and a release")),
    (_rollback_ignores_a_commit_in_between, commit_beside_a_rollback),
    (_setup_does_not_look_again, lambda: play_pair("abort and a setup", REPLACE)),
    (_sweep_reads_records_first, sweep_beside_a_setup),
    (_receipt_before_the_head, play_slow_abort),
    (_undo_by_names_alone, play_copied_names),
    (_an_empty_dataset_gets_no_first_entry, play_empty_dataset),
    (_the_record_is_the_flag, play_slow_setup),
    (_a_reader_believes_a_listing, read_beside_a_lagging_listing),
    (_version_after_the_deletions, lambda: play_published("commit 0")),
    (_no_version_of_the_newest, lambda: play_published("entering 0", "commit 1")),
]


@pytest.mark.parametrize(("put_in", "search"), FAULTS, ids=[one.__name__[1:] for one, _ in FAULTS])
def test_a_fault_in_a_step_is_found(
    put_in: Callable[[pytest.MonkeyPatch], None], search: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedules of a pair of processes fail where a step breaks one rule of the protocol."""
    put_in(monkeypatch)
    with pytest.raises((AssertionError, S3CommitError, pytest.fail.Exception)):
        search()
