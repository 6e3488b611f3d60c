"""Plan a sweep: decide which jobs are dead, and what to remove of them.

A sweep removes:

* staging of jobs that are committed, aborting or aborted but not cleaned up: it finishes the commit or abort;
* jobs that have not begun to commit and were inactive for ``older_than``: it aborts them;
* staging of unknown jobs, inactive for as long;
* pending uploads that no job claims, started as long ago;
* records of aborts that are older than ``older_than`` and thirty days;
* files that a commit has replaced and retained for as long as its job's ``retain`` says;
* lists of files that no entry of the log names, written as long ago.

It leaves everything that a live job may need, and every job that is ``committing``: some of its output may be
visible, and an operator decides with ``recover`` whether to commit it or roll it back. It also leaves a
half-published job of Hadoop, which ``adopt`` ends; of a successful one it removes the leftovers only. A job
is active when it writes to its staging or starts an upload. All ages are by the store's clock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.hadoop.status import HadoopJob, classify
from airflow_s3commit.protocol.hadoop.status import Verdict as HadoopVerdict
from airflow_s3commit.protocol.inspect.staging import (
    Claims,
    JobFacts,
    StagingFolder,
    claims_by_key,
    claims_by_record,
    folders_around,
    folders_below,
    job_facts,
    left_by_hadoop,
)
from airflow_s3commit.protocol.metadata.context import JobContext
from airflow_s3commit.protocol.metadata.fitness import (
    has_true_upload_times,
    probe_time,
    read_time,
)
from airflow_s3commit.protocol.metadata.pending_uploads import pending_parts
from airflow_s3commit.protocol.metadata.removal import PendingId, is_own_staging
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.layout import (
    aborted_prefix,
    owner_of,
)
from airflow_s3commit.protocol.sweep.history import plan_lists, plan_releases
from airflow_s3commit.protocol.sweep.plan import (
    Action,
    DeadJob,
    LeftAlone,
    OrphanList,
    OrphanUpload,
    ReplacedFiles,
    SpentId,
    SweepPlan,
)
from airflow_s3commit.store.base import ObjectStore, Upload

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision about a staging folder: the action, or None to leave it, and the reason."""

    action: Action | None
    reason: str


#: States that decide at any age. Any process may finish an abort, or a commit past its point of no return.
_DECIDED = {
    "committing": Verdict(None, "its commit has begun and is not finished"),
    "committed": Verdict("finish", "it is committed, but was not cleaned up"),
    "aborting": Verdict("abort", "its abort has begun and is not finished"),
    "aborted": Verdict("abort", "it is aborted, but was not cleaned up"),
}


def plan_sweep(
    store: ObjectStore,
    destination: Destination,
    *,
    older_than: float,
    staging_root: Destination | None = None,
    threads: int = 16,
) -> SweepPlan:
    """Return what a sweep of a destination would remove, without removing it. Repeatable.

    If no record is there to read the store's time from, a small hidden object is written and deleted. If
    there are orphans, an upload is also started and aborted, to check that listings show when uploads began.

    Args:
        store: The store of the destination.
        destination: The destination.
        older_than: Seconds without activity after which a job is dead: longer than any task runs, and than
            any job waits for its commit.
        staging_root: The jobs' staging, if not below the destination. Without it their uploads count as
            orphans at that age.
        threads: Concurrent requests; 0 sends them in the caller's thread.

    Raises:
        ValueError: ``older_than`` is negative.
        S3CommitError: The destination could not be read.

    """
    if older_than < 0:
        raise ValueError(f"older_than is {older_than}: it must be 0 seconds or more")
    # List uploads before claims: a job writes its claim before it starts an upload.
    uploads = list(store.list_uploads(destination.bucket, destination.prefix))
    scope = SweepScope(store, destination, staging_root, threads)
    folders = scope.folders()
    now = read_time(store, destination)
    if now is None and (uploads or folders):
        now = probe_time(store, destination)
    planner = _Planner(scope, older_than, now)
    planner.judge_all(folders, uploads)
    planner.judge_replaced()
    planner.judge_lists(folders)
    return SweepPlan(
        destination=destination.uri,
        staging_root=staging_root.uri if staging_root is not None else None,
        older_than=older_than,
        now=now,
        jobs=planner.jobs,
        uploads=planner.orphans,
        spent=list(
            spent_ids(store, destination, now=now, older_than=older_than, folders=folders, uploads=uploads)
        ),
        replaced=planner.replaced,
        lists=planner.lists,
        left=planner.left,
        jobs_left=planner.jobs_left,
    )


@dataclass(frozen=True, slots=True)
class SweepScope:
    """Where a sweep looks for jobs that may claim uploads below its destination.

    Attributes:
        store: The store of the destination.
        destination: The destination.
        staging_root: Another directory with staging of its jobs; None if there is none.
        threads: Concurrent requests; 0 sends them in the caller's thread.

    """

    store: ObjectStore
    destination: Destination
    staging_root: Destination | None
    threads: int

    def folders(self) -> list[StagingFolder]:
        """Return the staging folders that may belong to jobs on this destination."""
        roots = {self.destination: None}
        if self.staging_root is not None:
            roots[self.staging_root] = None
        return [folder for root in roots for folder in folders_below(self.store, root)]

    def claims(self, folders: Sequence[StagingFolder], uploads: Sequence[Upload]) -> Claims:
        """Return the claims on uploads, by these folders and by jobs on directories above and below."""
        bucket, keys = self.destination.bucket, (upload.key for upload in uploads)
        around = folders_around(self.store, bucket, keys, skip=self.destination, threads=self.threads)
        all_folders = [*folders, *around]
        claims = claims_by_key(all_folders, uploads)
        return claims | claims_by_record(
            self.store, all_folders, (upload for upload in uploads if upload.upload_id not in claims)
        )

    def context(self, folder: StagingFolder) -> JobContext:
        """Return the context of a folder's job, as a job on this destination."""
        return JobContext(self.store, folder.layout(self.destination), threads=self.threads)


def judge(facts: JobFacts, silent: float, older_than: float, hadoop: HadoopJob | None) -> Verdict:
    """Decide whether the job of a staging folder is dead, and how to end it.

    Args:
        facts: The job's records.
        silent: Seconds since the job's last activity.
        older_than: Seconds without activity after which a job is dead.
        hadoop: Facts about the job, if it is Hadoop's and neither its commit nor its abort has begun here.

    """
    if facts.problem is not None:
        return Verdict(None, f"its records cannot be read: {facts.problem}")
    state = facts.reached
    if state in _DECIDED:
        return _DECIDED[state]
    if silent < older_than:
        return Verdict(None, f"its last sign of life was {max(silent, 0.0):.0f} s ago")
    if hadoop is not None:
        return _judge_hadoop(classify(hadoop), silent, set_up=state is not None)
    if state is None:
        return Verdict("discard", f"it has no state, and its last sign of life was {silent:.0f} s ago")
    return Verdict("abort", f"it is {state}, and its last sign of life was {silent:.0f} s ago")


def _judge_hadoop(found: HadoopVerdict, silent: float, *, set_up: bool) -> Verdict:
    """Decide about a Hadoop job; ``set_up`` if an adoption has set it up as a job of ours."""
    status = f"the Hadoop job is {found.status}: {found.reason}"
    match found.status:
        case "half-published":
            return Verdict(None, f"{status}; commit or abort it: s3commit adopt")
        case "successful":
            return Verdict("discard", f"{status}; only its leftovers are removed")
        case _:
            reason = f"{status}, and its last sign of life was {silent:.0f} s ago"
            return Verdict("abort" if set_up else "discard", reason)


def is_on_destination(context: JobContext, folder: StagingFolder, facts: JobFacts) -> bool:
    """Return whether a record proves that a staging folder belongs to a job on this destination."""
    if facts.elsewhere is not None:
        return False
    if facts.job is not None or folder.root == context.layout.destination:
        return True
    # A clean-up removes the job's record first, so other records may still be there.
    try:
        return is_own_staging(context)
    except InvalidRecord:
        return False


class _Planner:
    """Collects what to remove and what to leave.

    Args:
        scope: Where to look for jobs.
        older_than: Seconds without activity after which a job is dead.
        now: The store's time, in seconds since the epoch; None if there was nothing to date.

    """

    def __init__(self, scope: SweepScope, older_than: float, now: float | None) -> None:
        self._scope = scope
        self._older_than = older_than
        self._now = now or 0.0
        self._has_records = now is not None
        self.jobs: list[DeadJob] = []
        self.orphans: list[OrphanUpload] = []
        self.replaced: list[ReplacedFiles] = []
        self.lists: list[OrphanList] = []
        self.left: list[LeftAlone] = []
        self.jobs_left = 0

    def judge_replaced(self) -> None:
        """Decide about the files that commits have replaced and retained."""
        if not self._has_records:
            return
        scope = self._scope
        try:
            for found in plan_releases(scope.store, scope.destination, self._now, threads=scope.threads):
                if isinstance(found, ReplacedFiles):
                    self.replaced.append(found)
                else:
                    self.left.append(found)
        except InvalidRecord as error:
            self._leave("retained files", f"the log cannot be read: {error}")

    def judge_lists(self, folders: Sequence[StagingFolder]) -> None:
        """Decide about the lists of files that no entry of the log names."""
        if not self._has_records:
            return
        scope, known = self._scope, {folder.job_id for folder in folders}
        try:
            for found in plan_lists(
                scope.store, scope.destination, self._now, older_than=self._older_than, known=known
            ):
                if isinstance(found, OrphanList):
                    self.lists.append(found)
                else:
                    self.left.append(found)
        except InvalidRecord as error:
            self._leave("lists of files", f"the log cannot be read: {error}")

    def judge_all(self, folders: Sequence[StagingFolder], uploads: Sequence[Upload]) -> None:
        """Decide about every folder and the uploads that it claims, then about those that no job claims."""
        claims = claims_by_key(folders, uploads)
        old = [u for u in uploads if u.upload_id not in claims and self._age(u) >= self._older_than]
        if old:
            claims |= self._scope.claims(folders, old)
        claimed: dict[StagingFolder, list[Upload]] = {}
        for upload in uploads:
            for folder in claims.get(upload.upload_id, ()):
                claimed.setdefault(folder, []).append(upload)
        for folder in folders:
            self._judge_folder(folder, claimed.pop(folder, []))
        for folder, others in claimed.items():
            what = f"{len(others)} uploads, among them {self._name(others[0])}"
            self._leave(
                what, f"job {folder.job_id} ({folder.staging.uri}) claims them; sweep its destination"
            )
        self._judge_orphans([upload for upload in old if upload.upload_id not in claims])

    def _judge_folder(self, folder: StagingFolder, uploads: list[Upload]) -> None:
        context = self._scope.context(folder)
        facts = job_facts(context)
        if facts.problem is None and not is_on_destination(context, folder, facts):
            return
        silent = self._now - max([folder.newest, *(upload.initiated for upload in uploads)])
        hadoop = left_by_hadoop(context, facts) if silent >= self._older_than else None
        verdict = judge(facts, silent, self._older_than, hadoop)
        if verdict.action is None:
            reason, home = verdict.reason, self._scope.destination
            if verdict == _DECIDED["committing"]:
                elsewhere = f" --staging {folder.root.uri}" if folder.root != home else ""
                reason += f"; look, then end it: s3commit recover {home.uri} {folder.job_id}{elsewhere}"
            self._leave(f"job {folder.job_id} ({folder.staging.uri})", reason)
            self.jobs_left += 1
            return
        self.jobs.append(
            DeadJob(
                job_id=folder.job_id,
                staging=folder.staging.uri,
                action=verdict.action,
                state=facts.reached,
                state_etag=facts.state.etag if facts.state is not None else None,
                silent=max(silent, 0.0),
                uploads=len(uploads),
                bytes=sum(self._sizes(uploads)),
                reason=verdict.reason,
            )
        )

    def _judge_orphans(self, orphans: list[Upload]) -> None:
        if orphans and not has_true_upload_times(self._scope.store, self._scope.destination):
            for upload in orphans:
                self._leave(
                    self._name(upload), "no job claims it, but this store does not show when it began"
                )
            return
        for upload, size in zip(orphans, self._sizes(orphans), strict=True):
            age = self._age(upload)
            self.orphans.append(
                OrphanUpload(
                    key=upload.key,
                    upload_id=upload.upload_id,
                    initiated=upload.initiated,
                    age=age,
                    bytes=size,
                    reason=f"no job claims it, and it began {age:.0f} s ago",
                )
            )

    def _age(self, upload: Upload) -> float:
        return self._now - upload.initiated

    def _sizes(self, uploads: Iterable[Upload]) -> list[int]:
        bucket = self._scope.destination.bucket
        ids = (PendingId(bucket, upload.key, upload.upload_id) for upload in uploads)
        found = pending_parts(self._scope.store, ids, threads=self._scope.threads)
        return [sum(part.size for part in parts or ()) for _, parts in found]

    def _leave(self, what: str, reason: str) -> None:
        self.left.append(LeftAlone(what=what, reason=reason))

    def _name(self, upload: Upload) -> str:
        return f"upload {upload.upload_id} of {join_uri(self._scope.destination.bucket, upload.key)}"


#: Minimum age in seconds at which the record of an abort is removed: 30 days.
SPENT_SECONDS = 30 * 86_400.0


def spent_ids(
    store: ObjectStore,
    destination: Destination,
    *,
    now: float | None,
    older_than: float,
    folders: Iterable[StagingFolder],
    uploads: Sequence[Upload],
) -> Iterator[SpentId]:
    """Yield the records of aborts that may be removed: old ones, of jobs without staging and uploads.

    Args:
        store: The store of the destination.
        destination: The destination.
        now: The store's time, in seconds since the epoch; None yields nothing.
        older_than: Minimum age of a record in seconds, if more than `SPENT_SECONDS`.
        folders: The staging folders of the destination's jobs.
        uploads: The pending uploads below the destination.

    """
    if now is None:
        return
    prefix, known = aborted_prefix(destination), {folder.job_id for folder in folders}
    for info in store.list_objects(destination.bucket, prefix):
        job_id, age = info.key.removeprefix(prefix).removesuffix(".json"), now - info.modified
        if age < max(older_than, SPENT_SECONDS) or job_id in known:
            continue
        if not any(owner_of(upload.key) == job_id for upload in uploads):
            uri = join_uri(destination.bucket, info.key)
            yield SpentId(job_id=job_id, uri=uri, etag=info.etag, age=age)
