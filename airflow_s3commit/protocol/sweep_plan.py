"""Plan a sweep: decide which jobs are dead, and what to remove of them.

A sweep finishes what is left of jobs that have ended, aborts jobs without activity for ``older_than`` seconds
and uploads of that age that no job claims, and deletes retained files once their time has passed. A job is
active when it writes a record or starts an upload. All ages are by the store's clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

from airflow_s3commit._format import Column, age, several, size, some
from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.hadoop.jobs import HadoopJob, Verdict, classify, find_hadoop_job
from airflow_s3commit.protocol.inspect.jobs import claims_of_hadoop
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.metadata.pending_uploads import pending_parts, tracked_uploads
from airflow_s3commit.protocol.metadata.removal import PendingId
from airflow_s3commit.protocol.metadata.store_check import has_true_upload_times, probe_time, read_time
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import State
from airflow_s3commit.protocol.model.layout import TIME, Layout
from airflow_s3commit.protocol.steps.files import freed_objects
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.steps.setup import other_home
from airflow_s3commit.protocol.steps.sweep import Found, Left, find_left, is_over, judge, retained_since
from airflow_s3commit.store.base import ObjectStore, Upload

#: Price of S3 Standard in us-east-1 for the first 50 TB, in US dollars per GB and month. Parts of pending
#: uploads are billed like objects. Source: AWS's public price list, https://aws.amazon.com/s3/pricing/
USD_PER_GB_MONTH = 0.023

_GB = 1024**3

#: ``finish``: finish the commit. ``abort``: abort the job, or finish its abort. ``discard``: remove what a
#: successful job of Hadoop left.
Action: TypeAlias = Literal["finish", "abort", "discard"]


def monthly_cost(stored: int) -> float:
    """Return the cost in US dollars of storing a number of bytes for a month, at `USD_PER_GB_MONTH`."""
    return stored / _GB * USD_PER_GB_MONTH


class OrphanUpload(Struct, frozen=True, kw_only=True):
    """A pending upload that no job claims: its age in seconds, and the size of its parts."""

    key: str
    upload_id: str
    age: float
    bytes: int
    reason: str


class DeadJob(Struct, frozen=True, kw_only=True):
    """A dead job, to be ended and removed with its uploads.

    Attributes:
        state: How far it has got; None if it has neither a record nor an end.
        silent: Seconds since its last activity.
        uploads: Number of its pending uploads, and ``bytes`` the size of their parts.
        objects: Number of its published objects; known once it was ended.
    """

    job_id: str
    staging: str
    action: Action
    state: State | None
    silent: float
    uploads: int = 0
    bytes: int = 0
    objects: int = 0
    reason: str


class ReplacedFiles(Struct, frozen=True, kw_only=True):
    """Files that a commit replaced and retained, to be released and deleted.

    Attributes:
        generation: The commit that replaced them.
        bytes: Their bytes; those of other programs' files count once they are released.
        age: Seconds since that commit.
        retain: Seconds that it retains them.
    """

    generation: int
    files: int
    bytes: int
    age: float = 0.0
    retain: int = 0
    reason: str

    @property
    def what(self) -> str:
        """Its name, for people."""
        return f"{several(self.files, 'file')} that generation {self.generation} replaced"


class LeftAlone(Struct, frozen=True, kw_only=True):
    """Something that a sweep does not remove: a job, an upload or a URI, and why."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


class Item(NamedTuple):
    """Something that a sweep would remove, of whatever kind."""

    what: str
    action: str
    silent: float
    uploads: int
    bytes: int
    reason: str


class SweepPlan(Plain, Struct, kw_only=True):
    """Everything that a sweep would remove.

    Attributes:
        staging_roots: URIs of other directories with stagings of its jobs, as given.
        older_than: Seconds without activity after which a job is dead, and minimum age of an orphan.
        now: The store's time at the plan, in seconds since the epoch; None if there was nothing to date.
        uploads: Orphaned uploads to abort.
        replaced: Retained files to release and delete.
    """

    derived = ("pending", "bytes", "oldest", "monthly_cost_usd")
    columns = (
        Column("what", "what", folds=True),
        Column("action", "action"),
        Column("silent", "silent", age),
        Column("uploads", "uploads", some, room=90),
        Column("size", "bytes", size),
        Column("why", "reason", room=120, folds=True),
    )

    destination: str
    staging_roots: list[str] = []
    older_than: float
    now: float | None = None
    jobs: list[DeadJob] = []
    uploads: list[OrphanUpload] = []
    replaced: list[ReplacedFiles] = []
    left: list[LeftAlone] = []
    jobs_left: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to remove."""
        return not (self.jobs or self.uploads or self.replaced)

    @property
    def items(self) -> list[Item]:
        """Everything that it would remove."""
        return [
            *(Item(f"job {j.job_id}", j.action, j.silent, j.uploads, j.bytes, j.reason) for j in self.jobs),
            *(Item(one.key, "discard", one.age, 1, one.bytes, one.reason) for one in self.uploads),
            *(Item(one.what, "delete", one.age, 0, one.bytes, one.reason) for one in self.replaced),
        ]

    @property
    def pending(self) -> int:
        """Number of pending uploads to abort: orphans, and those of the jobs to end."""
        return len(self.uploads) + sum(job.uploads for job in self.jobs)

    @property
    def bytes(self) -> int:
        """Size of the parts of these uploads, which are billed."""
        return sum(upload.bytes for upload in self.uploads) + sum(job.bytes for job in self.jobs)

    @property
    def oldest(self) -> float:
        """Age of the oldest orphan or job in the plan, in seconds; 0 if there is none."""
        return max((*(one.age for one in self.uploads), *(one.silent for one in self.jobs)), default=0.0)

    @property
    def monthly_cost_usd(self) -> float:
        """Estimated cost of `bytes` in US dollars per month, at `USD_PER_GB_MONTH`."""
        return monthly_cost(self.bytes)


_UNDATED = "this store does not show when uploads began"


def plan_sweep(
    store: ObjectStore,
    destination: Destination,
    *,
    older_than: float,
    staging_roots: Collection[Destination] = (),
    threads: int = 16,
) -> SweepPlan:
    """Return what a sweep would remove, without removing it, as a dry run of `sweep` does. Repeatable."""
    context = JobContext(store, Layout.of(destination, new_uuid()), threads=threads)
    return decide(context, older_than, staging_roots).plan


def decide(context: JobContext, older_than: float, roots: Collection[Destination]) -> Planner:
    """Plan a sweep as `plan_sweep` does. The context is of a job there with an id that nobody uses."""
    if not older_than >= 0:
        raise ValueError(f"older_than is {older_than}; give a number of seconds, 0 or more")
    store, home = context.store, context.layout.destination
    now = read_time(store, home)
    plan = SweepPlan(
        destination=home.uri, staging_roots=[root.uri for root in roots], older_than=older_than, now=now
    )
    planner = Planner(context, plan)
    try:
        left = find_left(context, roots)
        if now is None and (left.jobs or left.unnamed):
            plan.now = probe_time(store, home.bucket, home.key(TIME))
        if plan.now is not None:
            planner.judge_all(left, roots)
            planner.judge_replaced()
    except InvalidRecord as error:
        planner.leave(home.uri, f"its log cannot be read, so nothing is swept: {error}")
    return planner


@dataclass
class Planner:
    """What a sweep removes, and what it leaves; ``found`` has what is left of each job to end, by its id."""

    context: JobContext
    plan: SweepPlan
    found: dict[str, Found] = field(default_factory=dict)
    _are_true: bool | None = field(init=False, default=None)

    @property
    def time(self) -> float:
        """The store's time, in seconds since the epoch; 0 if there is nothing to date."""
        return self.plan.now or 0.0

    def leave(self, what: str, reason: str) -> None:
        """Note what is left, and why."""
        self.plan.left.append(LeftAlone(what=what, reason=reason))

    def judge_all(self, left: Left, roots: Collection[Destination]) -> None:
        """Decide about every job, then about the uploads that are no job's."""
        old = [upload for upload in left.unnamed if self.time - upload.initiated >= self.plan.older_than]
        unknown = [one for one in left.jobs.values() if not (one.is_known or one.is_hadoops)]
        keys = [one.key for one in (*old, *(upload for one in unknown for upload in one.uploads))]
        context = self.context
        claims = claims_of_hadoop(context.store, context.bucket, keys, roots, threads=context.threads)
        orphans = [upload for upload in old if upload.upload_id not in claims]
        for found in left.jobs.values():
            if not claims.keys() & {upload.upload_id for upload in found.uploads}:
                orphans += self._judge_job(found, has_log=left.has_log)
        self._judge_orphans(orphans)
        home = context.layout.destination.uri
        stagings = (one.staging.uri for one in claims.values())
        elsewhere = Counter(uri for uri in stagings if not uri.startswith(home))
        for uri, number in sorted(elsewhere.items()):
            why = f"files of Hadoop in {uri} name them: sweep its destination"
            self.leave(several(number, "upload"), why)

    def _judge_job(self, found: Found, *, has_log: bool) -> list[Upload]:
        """Decide about a job; return its uploads if it is no job of this package."""
        if not (found.is_known or found.is_more_than_objects or found.objects):
            # Files that were copied here, or of other programs.
            return []
        action: Action | None
        action, why = judge(found, self.time, self.plan.older_than)
        uploads, stored = len(found.uploads), sum(self._sizes(found.uploads)) if action else 0
        if action == "abort" and found.end is None and found.is_hadoops:
            if (job := self._hadoops(found)) is not None:
                action, why = self._judge_hadoops(found, classify(job))
                uploads = job.others if action == "discard" else job.pending + job.others
                stored = job.bytes if action == "abort" else 0
        elif action and (reason := self._why_not_ours(found)):
            action, why = None, reason
        if action is None:
            self.leave(name_of_job(found.job_id, found.layout.staging.uri), why)
            self.plan.jobs_left += 1
            return []
        if not (has_log or found.records):
            # Setup begins the log: without one there was no job of this package, whatever id the names have.
            return found.uploads
        self.found[found.job_id] = found
        self.plan.jobs.append(
            DeadJob(
                job_id=found.job_id,
                staging=found.layout.staging.uri,
                action=action,
                state=_state(found),
                silent=found.silent(self.time),
                uploads=uploads,
                bytes=stored,
                reason=why,
            )
        )
        return []

    def _hadoops(self, found: Found) -> HadoopJob | None:
        home = self.context.layout.destination
        record = found.record
        source = record.context.get("adopted_from") if record is not None and record.adopted else None
        return find_hadoop_job(self.context.store, home, found.job_id, pendingsets_uri=source)

    def _judge_hadoops(self, found: Found, told: Verdict) -> tuple[Action | None, str]:
        """Decide about a silent job of Hadoop that has not ended here."""
        why = f"the Hadoop job is {told.status}: {told.reason}"
        # Once an adoption has sealed it, our own commit publishes it.
        if told.status == "half-published" or (told.status == "successful" and found.sealed is not None):
            return None, f"{why}; commit or abort it: s3commit adopt"
        if told.status == "successful":
            return "discard", f"{why}; only its leftovers are removed"
        return "abort", f"{why}, and its last sign of life was {found.silent(self.time):.0f} s ago"

    def _why_not_ours(self, found: Found) -> str:
        """Return why a job without a record here, or of another staging than its end, is left; empty if not.

        Destinations nest: a job on a directory above or below has uploads here too, and its records there.
        """
        if found.record is not None or (found.is_known and not found.is_elsewhere):
            return ""
        job = replace(self.context, layout=found.layout)
        keys = [*(one.key for one in found.uploads), *(one.key for one in found.objects)]
        if found.records:
            recorded = list(tracked_uploads(job, found.layout.staging.prefix))
            if None in recorded:
                # A job on another directory may have chosen this one for its staging.
                return "its staging has a damaged record, or one of another destination: look whose it is"
            keys += (upload.destinationKey for upload in recorded if upload is not None)
        if not keys:
            return f"no record shows that it is a job on {job.layout.destination.uri}"
        if (place := other_home(job, keys)) is not None:
            return f"it is a job on {place.uri}: sweep that"
        is_dated = found.records or found.objects or self._times_are_true
        return "" if is_dated else f"nobody knows it, but {_UNDATED}"

    def _judge_orphans(self, orphans: list[Upload]) -> None:
        """Decide about old uploads that no job claims."""
        for upload, stored in zip(orphans, self._sizes(orphans), strict=True):
            past = self.time - upload.initiated
            if not self._times_are_true:
                what = name_of_upload(self.context.bucket, upload.key, upload.upload_id)
                self.leave(what, f"no job claims it, but {_UNDATED}")
                continue
            why = f"no job claims it, and it began {past:.0f} s ago"
            self.plan.uploads.append(
                OrphanUpload(key=upload.key, upload_id=upload.upload_id, age=past, bytes=stored, reason=why)
            )

    def judge_replaced(self) -> None:
        """Decide about the files that commits have replaced and retained."""
        table = read_table(self.context.store, self.context.layout.destination)
        for generation, past in sorted(retained_since(self.context, table, self.time).items()):
            taken = table.retained[generation]
            counts = table.counts_of(taken.pieces)
            one = ReplacedFiles(
                generation=generation,
                files=counts.files + len(taken.unowned),
                bytes=counts.bytes,
                age=past,
                retain=taken.seconds,
                reason=f"retained for {age(taken.seconds)}, and replaced {age(past)} ago",
            )
            if is_over(taken, past):
                self.plan.replaced.append(one)
            else:
                files = f"{several(one.files, 'file')} ({size(one.bytes)})"
                self.leave(f"{files} that generation {generation} replaced", one.reason)
        if freed := list(freed_objects(self.context, table)):
            why = "a sweep that died has released them, and not deleted all of them"
            stored, generation = sum(info.size for info in freed), max(table.freed)
            self.plan.replaced.append(
                ReplacedFiles(generation=generation, files=len(freed), bytes=stored, reason=why)
            )

    @property
    def _times_are_true(self) -> bool:
        """Whether listings show when uploads began: a probe tells, once."""
        if self._are_true is None:
            home = self.context.layout.destination
            self._are_true = bool(has_true_upload_times(self.context.store, home.bucket, home.key(TIME)))
        return self._are_true

    def _sizes(self, uploads: Iterable[Upload]) -> list[int]:
        ids = (PendingId(self.context.bucket, upload.key, upload.upload_id) for upload in uploads)
        found = pending_parts(self.context.store, ids, threads=self.context.threads)
        return [sum(part.size for part in parts or ()) for _, parts in found]


def _state(found: Found) -> State | None:
    if found.end is not None:
        return "committed" if found.end.kind == "commit" else "aborted"
    if found.record is None:
        return None
    return "sealed" if found.sealed is not None else "open"


def name_of_job(job_id: str, staging: str) -> str:
    """Return a job's name in a report."""
    return f"job {job_id} ({staging})"


def name_of_upload(bucket: str, key: str, upload_id: str) -> str:
    """Return an upload's name in a report."""
    return f"upload {upload_id} of {join_uri(bucket, key)}"
