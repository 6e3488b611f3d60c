"""Telling the dead from the living: what a sweep of a destination would remove, and what it must leave.

A sweep removes what the dead left behind and nobody will ever use:

* staging of jobs that ended, or were ending in an abort, and were not cleaned up: what is left is done;
* jobs that never came to a commit and gave no sign of life for ``older_than``: they are aborted;
* staging that belongs to no job any more, and as old;
* pending uploads that no job claims, and as old;
* a commit lock that lapsed and whose job is gone;
* the record that a job was aborted, once it is older than ``older_than`` and thirty days.

It leaves what a living job may need, and a job that is ``committing``, however long ago: half of its output
may be visible, and whether it goes forward or back is for ``recover`` to be told. So it is with a job of
Hadoop's that is half-published, for ``adopt``; of a successful one only the leftovers go. Signs of life are
anything written in the job's staging and any upload begun for it. All ages are by the store's clock.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_s3commit.exceptions import ForeignRecord, InvalidRecord, Refused
from airflow_s3commit.protocol import journal
from airflow_s3commit.protocol.cleanup import is_own_staging
from airflow_s3commit.protocol.context import JobContext
from airflow_s3commit.protocol.destination import Destination, join_uri
from airflow_s3commit.protocol.hadoop_status import HadoopJob, classify
from airflow_s3commit.protocol.hadoop_status import Verdict as HadoopVerdict
from airflow_s3commit.protocol.journal import Stored
from airflow_s3commit.protocol.layout import Layout, lock_key
from airflow_s3commit.protocol.parts import pending_parts
from airflow_s3commit.protocol.records import LockRecord
from airflow_s3commit.protocol.removal import PendingId
from airflow_s3commit.protocol.spent import spent_ids
from airflow_s3commit.protocol.staging import (
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
from airflow_s3commit.protocol.state import read_state
from airflow_s3commit.protocol.store_time import asked_time, known_time, tells_when_uploads_began
from airflow_s3commit.protocol.sweep_plan import (
    Action,
    DeadJob,
    LapsedLock,
    LeftAlone,
    OrphanUpload,
    SweepPlan,
)
from airflow_s3commit.store.base import ObjectStore, Upload

__all__ = ["Surroundings", "Verdict", "is_here", "judge", "lapsed_lock", "left_by_hadoop", "plan_sweep"]

logger = logging.getLogger(__name__)

#: Stores tell times in whole seconds; a lease is over when it is over by more than that.
_STORE_CLOCK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to become of a staging folder: an action, or None for nothing, and why."""

    action: Action | None
    reason: str


#: States that say all, however long ago they were reached. To go on with an abort, or with what is left of a
#: commit, is open to everybody at any time.
_BEYOND_DOUBT = {
    "committing": Verdict(None, "its commit has begun and is not finished; recover it: s3commit recover"),
    "committed": Verdict("finish", "it is committed, and was not cleaned up"),
    "aborting": Verdict("abort", "its abort has begun and is not finished"),
    "aborted": Verdict("abort", "it is aborted, and was not cleaned up"),
}


def plan_sweep(
    store: ObjectStore,
    destination: Destination,
    *,
    older_than: float,
    staging_root: Destination | None = None,
    threads: int = 16,
) -> SweepPlan:
    """Find what a sweep of a destination would remove.

    Nothing is removed. Where there is no record to read the store's time from, or orphans are to be judged
    by their age, a small hidden object is written and an upload begun, and both are taken back.

    Args:
        store: Where everything is.
        destination: The destination.
        older_than: Seconds without a sign of life after which a job is dead. It must be longer than any
            task works, and than any job waits for its commit: they need not give a sign meanwhile.
        staging_root: Where jobs on this destination have their staging, if not below it. Without it their
            uploads are orphans once they are that old.
        threads: How many requests are made at once; 0 makes them in the caller's thread.

    """
    if older_than < 0:
        raise ValueError(f"older_than is {older_than}: it is a number of seconds, 0 or more")
    # Uploads first: whoever began one of these had its claim on the store before.
    uploads = list(store.list_uploads(destination.bucket, destination.prefix))
    place = Surroundings(store, destination, staging_root, threads)
    folders = place.folders()
    now = known_time(store, destination)
    if now is None and (uploads or folders):
        now = asked_time(store, destination)
    planner = _Planner(place, older_than, now or 0.0)
    planner.judge_all(folders, uploads)
    return SweepPlan(
        destination=destination.uri,
        staging_root=staging_root.uri if staging_root is not None else None,
        older_than=older_than,
        now=now,
        jobs=planner.jobs,
        uploads=planner.orphans,
        lock=lapsed_lock(store, destination),
        spent=list(
            spent_ids(store, destination, now=now, older_than=older_than, folders=folders, uploads=uploads)
        ),
        left=planner.left,
    )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where the jobs are that may claim uploads below a destination.

    Attributes:
        store: Where everything is.
        destination: The destination.
        staging_root: Where else its jobs may have their staging.
        threads: How many requests are made at once; 0 makes them in the caller's thread.

    """

    store: ObjectStore
    destination: Destination
    staging_root: Destination | None
    threads: int

    def folders(self) -> list[StagingFolder]:
        """Return the staging folders that may be of jobs on this destination."""
        roots = {self.destination: None}
        if self.staging_root is not None:
            roots[self.staging_root] = None
        lock = _find_lock(self.store, self.destination)
        if lock is not None:
            roots[_holder(lock.record).root] = None
        return [folder for root in roots for folder in folders_below(self.store, root)]

    def claims(self, folders: Sequence[StagingFolder], uploads: Sequence[Upload]) -> Claims:
        """Return every claim on some uploads: of these folders, and of jobs above and below."""
        bucket, keys = self.destination.bucket, (upload.key for upload in uploads)
        around = folders_around(self.store, bucket, keys, skip=self.destination, threads=self.threads)
        everyone = [*folders, *around]
        claims = claims_by_key(everyone, uploads)
        return claims | claims_by_record(
            self.store, everyone, (upload for upload in uploads if upload.upload_id not in claims)
        )

    def context(self, folder: StagingFolder) -> JobContext:
        """Return a folder's job as one on this destination."""
        return JobContext(self.store, folder.layout(self.destination), threads=self.threads)


def judge(facts: JobFacts, silent: float, older_than: float, hadoop: HadoopJob | None) -> Verdict:
    """Decide whether a staging folder's job is dead, and if so what is left to be done for it.

    Args:
        facts: What the job's records say.
        silent: Seconds since its last sign of life.
        older_than: Seconds of silence after which a job is dead.
        hadoop: What Hadoop left of it, and nobody has begun to end.

    """
    if facts.problem is not None:
        return Verdict(None, f"its records cannot be read: {facts.problem}")
    state = facts.state.record.state if facts.state is not None else None
    if state in _BEYOND_DOUBT:
        return _BEYOND_DOUBT[state]
    if silent < older_than:
        return Verdict(None, f"it gave a sign of life {max(silent, 0.0):.0f} s ago")
    if hadoop is not None:
        return _judge_hadoop(classify(hadoop), silent, set_up=state is not None)
    if state is None:
        return Verdict("discard", f"it is of no job that is known, and {silent:.0f} s old")
    return Verdict("abort", f"it is {state}, and gave no sign of life for {silent:.0f} s")


def _judge_hadoop(found: HadoopVerdict, silent: float, *, set_up: bool) -> Verdict:
    """Decide about a job that Hadoop left, and that we may have set up to adopt it."""
    said = f"Hadoop's job is {found.status}: {found.reason}"
    match found.status:
        case "half-published":
            return Verdict(None, f"{said}; finish it or take it back: s3commit adopt")
        case "successful":
            return Verdict("discard", f"{said}; only its leftovers go")
        case _:
            return Verdict("abort" if set_up else "discard", f"{said}, and {silent:.0f} s old")


def is_here(context: JobContext, folder: StagingFolder, facts: JobFacts) -> bool:
    """Tell whether a staging folder is of a job on this destination, as far as anything still says so."""
    if facts.elsewhere is not None:
        return False
    if facts.job is not None or folder.root == context.layout.destination:
        return True
    # Its record is removed first of all, once everything but the removal of its staging has been done.
    try:
        return is_own_staging(context)
    except InvalidRecord:
        return False


def lapsed_lock(store: ObjectStore, destination: Destination) -> LapsedLock | None:
    """Return the destination's lock if its lease is over and its job gone; else None."""
    stored = _find_lock(store, destination)
    if stored is None:
        return None
    holder, age = stored.record, stored.date - stored.modified
    if age <= holder.lease + _STORE_CLOCK_SECONDS:
        return None
    try:
        if read_state(JobContext(store, _holder(holder).layout(destination))) is not None:
            return None
    except ForeignRecord:
        logger.info("the commit lock of %s is of another place", destination.uri)
    return LapsedLock(
        uri=join_uri(destination.bucket, lock_key(destination)),
        etag=stored.etag,
        job_id=holder.job_id,
        staging=holder.staging,
        age=age,
    )


class _Planner:
    """Collects what there is to remove, and what is left alone."""

    def __init__(self, place: Surroundings, older_than: float, now: float) -> None:
        self._place = place
        self._older_than = older_than
        self._now = now
        self.jobs: list[DeadJob] = []
        self.orphans: list[OrphanUpload] = []
        self.left: list[LeftAlone] = []

    def judge_all(self, folders: Sequence[StagingFolder], uploads: Sequence[Upload]) -> None:
        """Judge every folder by what it claims, then the uploads that nobody claims."""
        claims = claims_by_key(folders, uploads)
        old = [u for u in uploads if u.upload_id not in claims and self._age(u) >= self._older_than]
        if old:
            claims |= self._place.claims(folders, old)
        claimed: dict[StagingFolder, list[Upload]] = {}
        for upload in uploads:
            for folder in claims.get(upload.upload_id, ()):
                claimed.setdefault(folder, []).append(upload)
        for folder in folders:
            self._judge_folder(folder, claimed.pop(folder, []))
        for folder, theirs in claimed.items():
            what = f"{len(theirs)} uploads, among them {self._name(theirs[0])}"
            self._leave(
                what, f"job {folder.job_id} ({folder.staging.uri}) claims them; sweep its destination"
            )
        self._judge_orphans([upload for upload in old if upload.upload_id not in claims])

    def _judge_folder(self, folder: StagingFolder, uploads: list[Upload]) -> None:
        context = self._place.context(folder)
        facts = job_facts(context)
        if facts.problem is None and not is_here(context, folder, facts):
            return
        silent = self._now - max([folder.newest, *(upload.initiated for upload in uploads)])
        hadoop = left_by_hadoop(context, facts) if silent >= self._older_than else None
        verdict = judge(facts, silent, self._older_than, hadoop)
        if verdict.action is None:
            self._leave(f"job {folder.job_id} ({folder.staging.uri})", verdict.reason)
            return
        self.jobs.append(
            DeadJob(
                job_id=folder.job_id,
                staging=folder.staging.uri,
                action=verdict.action,
                state=facts.state.record.state if facts.state is not None else None,
                state_etag=facts.state.etag if facts.state is not None else None,
                silent=max(silent, 0.0),
                uploads=len(uploads),
                bytes=sum(self._sizes(uploads)),
                reason=verdict.reason,
            )
        )

    def _judge_orphans(self, orphans: list[Upload]) -> None:
        if orphans and not tells_when_uploads_began(self._place.store, self._place.destination):
            for upload in orphans:
                self._leave(
                    self._name(upload), "no job claims it, but this store does not tell when it began"
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
        bucket = self._place.destination.bucket
        ids = (PendingId(bucket, upload.key, upload.upload_id) for upload in uploads)
        found = pending_parts(self._place.store, ids, threads=self._place.threads)
        return [sum(part.size for part in parts or ()) for _, parts in found]

    def _leave(self, what: str, reason: str) -> None:
        self.left.append(LeftAlone(what=what, reason=reason))

    def _name(self, upload: Upload) -> str:
        return f"upload {upload.upload_id} of {join_uri(self._place.destination.bucket, upload.key)}"


def _find_lock(store: ObjectStore, destination: Destination) -> Stored[LockRecord] | None:
    """Read the lock; one that makes no sense is nobody's, and left for its readers to complain of."""
    try:
        stored = journal.find(store, destination.bucket, lock_key(destination), LockRecord)
        if stored is not None:
            _holder(stored.record)
    except Refused:
        logger.warning("the commit lock of %s cannot be read", destination.uri, exc_info=True)
        return None
    return stored


def _holder(lock: LockRecord) -> StagingFolder:
    staging = Destination.parse(lock.staging)
    # Refuses a staging that is not one of this job.
    Layout(staging, staging, lock.job_id)
    return StagingFolder(staging, lock.job_id)
