"""Plan a sweep: decide which jobs are dead, and what to remove of them.

A sweep removes:

* what is left of jobs that have ended: it finishes their commit or abort;
* jobs that have not ended and were inactive for ``older_than``, known or not: it aborts them;
* jobs of Hadoop as dead, and the leftovers of successful ones;
* pending uploads that no job claims, started as long ago;
* files that a commit has replaced and retained for as long as its job's ``retain`` says.

It leaves everything that a live job may need, and a half-published job of Hadoop, which ``adopt`` ends. A job
is active when it writes a record or starts an upload. All ages are by the store's clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit._format import age, several, size
from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.hadoop.status import classify, find_hadoop_job
from airflow_s3commit.protocol.metadata.context import JobContext, new_uuid
from airflow_s3commit.protocol.metadata.fitness import has_true_upload_times, probe_time, read_time
from airflow_s3commit.protocol.metadata.pending_uploads import pending_parts, tracked_uploads
from airflow_s3commit.protocol.metadata.removal import PendingId
from airflow_s3commit.protocol.model.destination import Destination, join_uri
from airflow_s3commit.protocol.model.job import State
from airflow_s3commit.protocol.model.layout import Layout
from airflow_s3commit.protocol.steps.fold import read_table
from airflow_s3commit.protocol.steps.release import freed_objects, is_over, retained_since
from airflow_s3commit.protocol.steps.sweep import Found, Left, Verdict, find_left, judge
from airflow_s3commit.protocol.sweep.claims import hadoops_claims, home_of
from airflow_s3commit.protocol.sweep.plan import (
    Action,
    DeadJob,
    LeftAlone,
    OrphanUpload,
    ReplacedFiles,
    SweepPlan,
)
from airflow_s3commit.store.base import ObjectStore, Upload

_UNDATED = "this store does not show when uploads began"


def plan_sweep(
    store: ObjectStore,
    destination: Destination,
    *,
    older_than: float,
    staging_roots: Collection[Destination] = (),
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
        staging_roots: Directories with stagings of its jobs that are not below the destination. A job's own
            record names its staging; only what outlived that record is found by these alone.
        threads: Concurrent requests; 0 sends them in the caller's thread.

    Raises:
        ValueError: ``older_than`` is negative.
        S3CommitError: The destination could not be read.

    """
    return decide(
        store, destination, older_than=older_than, staging_roots=staging_roots, threads=threads
    ).plan


@dataclass(frozen=True)
class Decided:
    """A plan, and what is needed to carry it out at once.

    Attributes:
        context: A job of the destination with an id that nobody uses.
        plan: The plan.
        verdicts: What to do with each job of the plan, by its id.

    """

    context: JobContext
    plan: SweepPlan
    verdicts: dict[str, Verdict]


def decide(
    store: ObjectStore,
    destination: Destination,
    *,
    older_than: float,
    staging_roots: Collection[Destination] = (),
    clock: Clock | None = None,
    new_id: Callable[[], str] = new_uuid,
    threads: int = 16,
) -> Decided:
    """Plan a sweep as `plan_sweep` does."""
    if not older_than >= 0:
        raise ValueError(f"older_than is {older_than}; give a number of seconds, 0 or more")
    layout = Layout.of(destination, new_uuid())
    context = JobContext(store, layout, clock=clock or SystemClock(), new_id=new_id, threads=threads)
    now, planner = read_time(store, destination), _Planner(context, older_than, staging_roots)
    try:
        left = find_left(context, staging_roots)
        if now is None and (left.jobs or left.unnamed):
            now = probe_time(store, destination)
        if now is not None:
            planner.now = now
            planner.judge_all(left)
            planner.judge_replaced()
    except InvalidRecord as error:
        planner.leave(destination.uri, f"its log cannot be read, so nothing is swept: {error}")
    plan = SweepPlan(
        destination=destination.uri,
        staging_roots=[root.uri for root in staging_roots],
        older_than=older_than,
        now=now,
        jobs=planner.jobs,
        uploads=planner.orphans,
        replaced=planner.replaced,
        left=planner.left,
        jobs_left=planner.jobs_left,
    )
    return Decided(context, plan, planner.verdicts)


@dataclass
class _Planner:
    """Collects what to remove and what to leave."""

    context: JobContext
    older_than: float
    roots: Collection[Destination]
    now: float = 0.0
    jobs: list[DeadJob] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    orphans: list[OrphanUpload] = field(default_factory=list)
    replaced: list[ReplacedFiles] = field(default_factory=list)
    left: list[LeftAlone] = field(default_factory=list)
    jobs_left: int = 0
    _true_times: bool | None = None

    def leave(self, what: str, reason: str) -> None:
        """Note what is left, and why."""
        self.left.append(LeftAlone(what=what, reason=reason))

    def judge_all(self, left: Left) -> None:
        """Decide about every job, then about the uploads that are no job's."""
        old = [upload for upload in left.unnamed if self._age(upload) >= self.older_than]
        unknown = [one for one in left.jobs.values() if not (one.is_known or one.is_hadoops)]
        suspects = [*old, *(upload for one in unknown for upload in one.uploads)]
        claims = hadoops_claims(self.context.store, self.context.bucket, suspects, self.roots)
        orphans = [upload for upload in old if upload.upload_id not in claims]
        for job_id in sorted(left.jobs):
            found = left.jobs[job_id]
            if not claims.keys() & {upload.upload_id for upload in found.uploads}:
                orphans += self._judge_job(found, has_log=left.has_log)
        self._judge_orphans(orphans)
        home = self.context.layout.destination.uri
        for uri, number in sorted(
            Counter(one for one in claims.values() if not one.startswith(home)).items()
        ):
            self.leave(
                several(number, "upload"), f"files of Hadoop in {uri} name them: sweep its destination"
            )

    def _judge_job(self, found: Found, *, has_log: bool) -> list[Upload]:
        """Decide about a job; return its uploads if it is none."""
        verdict = judge(found, self.now, self.older_than)
        if not (found.is_known or found.is_more_than_objects or found.objects):
            # Files that were copied here, or of other programs.
            return []
        action: Action = "finish" if verdict.action == "finish" else "abort"
        uploads = len(found.uploads)
        if verdict.action == "abort" and found.is_hadoops:
            action, uploads, verdict = self._judge_hadoops(verdict)
        elif verdict.action == "abort" and found.record is None:
            verdict = self._judge_unknown(verdict)
        if verdict.action == "leave":
            self.leave(f"job {found.job_id} ({found.layout.staging.uri})", verdict.why)
            self.jobs_left += 1
            return []
        if not (has_log or found.records):
            # Setup begins the log: so it is no job of this package, whatever the names have.
            return found.uploads
        self.verdicts[found.job_id] = verdict
        self.jobs.append(
            DeadJob(
                job_id=found.job_id,
                staging=found.layout.staging.uri,
                action=action,
                state=_state(found),
                silent=found.silent(self.now),
                uploads=uploads,
                bytes=sum(self._sizes(found.uploads)),
                reason=verdict.why,
            )
        )
        return []

    def _judge_hadoops(self, verdict: Verdict) -> tuple[Action, int, Verdict]:
        """Decide about a silent job of Hadoop that has not ended here, adopted or not."""
        found, context = verdict.found, self.context
        source = found.record.context.get("adopted_from") if found.record is not None else None
        job = find_hadoop_job(context.store, context.layout.destination, found.job_id, adopted_from=source)
        if job is None:
            return "abort", len(found.uploads), verdict
        told = classify(job)
        why = f"the Hadoop job is {told.status}: {told.reason}"
        if told.status == "half-published":
            left = f"{why}; commit or abort it: s3commit adopt"
            return "abort", 0, replace(verdict, action="leave", why=left)
        if told.status == "successful":
            return "discard", job.others, replace(verdict, why=f"{why}; only its leftovers are removed")
        silent = f"{why}, and its last sign of life was {found.silent(self.now):.0f} s ago"
        return "abort", job.pending + job.others, replace(verdict, why=silent)

    def _judge_unknown(self, verdict: Verdict) -> Verdict:
        """Decide about a silent job that has neither a record nor an end here: it may be one beside this."""
        found, home, context = verdict.found, self.context.layout.destination, self.context
        keys = [*(one.key for one in found.uploads), *(one.key for one in found.objects)]
        if found.records:
            job = replace(context, layout=found.layout)
            recorded = list(tracked_uploads(job, found.layout.staging.prefix))
            if None in recorded:
                # A job on another directory may have chosen this one for its staging.
                why = (
                    "its staging has a record that is damaged, or of another destination: look, and abort it"
                )
                return replace(verdict, action="leave", why=why)
            keys += (upload.destinationKey for upload in recorded if upload is not None)
        if not keys and not found.layout.is_below_destination:
            return replace(verdict, action="leave", why=f"no record shows that it is a job on {home.uri}")
        place = home_of(context.store, home.bucket, found.job_id, keys)
        if place is not None:
            return replace(verdict, action="leave", why=f"it is a job on {place.uri}: sweep that")
        if not (found.records or found.objects or self._are_times_true()):
            return replace(verdict, action="leave", why=f"nobody knows it, but {_UNDATED}")
        return verdict

    def _judge_orphans(self, orphans: list[Upload]) -> None:
        """Decide about old uploads that are of no job."""
        if orphans and not self._are_times_true():
            for upload in orphans:
                self.leave(self._name(upload), f"no job claims it, but {_UNDATED}")
            return
        for upload, stored in zip(orphans, self._sizes(orphans), strict=True):
            past = self._age(upload)
            self.orphans.append(
                OrphanUpload(
                    key=upload.key,
                    upload_id=upload.upload_id,
                    initiated=upload.initiated,
                    age=past,
                    bytes=stored,
                    reason=f"no job claims it, and it began {past:.0f} s ago",
                )
            )

    def judge_replaced(self) -> None:
        """Decide about the files that commits have replaced and retained."""
        table = read_table(self.context.store, self.context.layout.destination)
        ages = retained_since(self.context, table, self.now)
        for generation, past in sorted(ages.items()):
            one = table.retained[generation]
            counts, reason = (
                table.counts_of(one.pieces),
                f"retained for {age(one.seconds)}, and replaced {age(past)} ago",
            )
            files = counts.files + len(one.unowned)
            if is_over(one, past):
                self.replaced.append(
                    ReplacedFiles(
                        generation=generation,
                        files=files,
                        bytes=counts.bytes,
                        age=past,
                        retain=one.seconds,
                        reason=reason,
                    )
                )
            else:
                what = (
                    f"{several(files, 'file')} ({size(counts.bytes)}) that generation {generation} replaced"
                )
                self.leave(what, reason)
        freed = list(freed_objects(self.context, table)) if table.freed else []
        if freed:
            self.replaced.append(
                ReplacedFiles(
                    generation=max(table.freed),
                    files=len(freed),
                    bytes=sum(info.size for info in freed),
                    age=0.0,
                    retain=0,
                    reason="a sweep that died has released them, and not deleted all of them",
                )
            )

    def _are_times_true(self) -> bool:
        """Return whether listings show when uploads began; a probe shows it once."""
        if self._true_times is None:
            self._true_times = has_true_upload_times(self.context.store, self.context.layout.destination)
        return self._true_times

    def _age(self, upload: Upload) -> float:
        return self.now - upload.initiated

    def _sizes(self, uploads: Iterable[Upload]) -> list[int]:
        ids = (PendingId(self.context.bucket, upload.key, upload.upload_id) for upload in uploads)
        found = pending_parts(self.context.store, ids, threads=self.context.threads)
        return [sum(part.size for part in parts or ()) for _, parts in found]

    def _name(self, upload: Upload) -> str:
        return f"upload {upload.upload_id} of {join_uri(self.context.bucket, upload.key)}"


def _state(found: Found) -> State | None:
    if found.end is not None:
        return "committed" if found.end.kind == "commit" else "aborted"
    if found.record is None:
        return None
    return "sealed" if found.is_sealed else "open"
