"""Check that a destination, with these credentials, supports what the protocol requires.

The checks are probes of the store, a rehearsal of whole jobs, and an upload with the jobs' object options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from msgspec import Struct

from airflow_s3commit._causes import described, whole_text
from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import (
    AccessDenied,
    NoSuchBucket,
    OutcomeUnknown,
    S3CommitError,
    StoreUnsuitable,
    Unavailable,
)
from airflow_s3commit.protocol.doctor.probes import (
    BODY,
    DATA_PROBES,
    RECORD_PROBES,
    RECORD_UPLOADS,
    Finding,
    Probe,
    Sandbox,
    Verdict,
)
from airflow_s3commit.protocol.job import Job
from airflow_s3commit.protocol.metadata.context import has_object, new_uuid
from airflow_s3commit.protocol.model.codec import KIB, Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import ConflictMode, JobOptions, ObjectOptions
from airflow_s3commit.protocol.model.layout import HOME, MAGIC_PREFIX, SUCCESS
from airflow_s3commit.protocol.sweep import sweep
from airflow_s3commit.protocol.write_job import write_job
from airflow_s3commit.store.base import METADATA_PREFIX, TAG_COUNT, ObjectInfo, ObjectStore, StoreProfile
from airflow_s3commit.store.forwarding import with_headers


class Check(Struct, frozen=True, kw_only=True):
    """The result of one check.

    Attributes:
        place: URI of the checked destination or staging root.
        verdict: ``ok``; ``warning``: jobs work, with a drawback; ``failed``: jobs will fail; ``skipped``: a
            check that this one depends on failed or was itself skipped.
        says: The finding, in a sentence.
        remedy: What to do about it; None if nothing.
    """

    name: str
    place: str
    verdict: Verdict
    says: str
    remedy: str | None = None


class Diagnosis(Plain, Struct, frozen=True, kw_only=True):
    """The results of all checks, in the order in which they ran."""

    derived = ("healthy",)

    destination: str
    staging_root: str | None
    checks: list[Check]

    @property
    def healthy(self) -> bool:
        """Whether every check ran, and none failed; warnings do not count."""
        return all(check.verdict in ("ok", "warning") for check in self.checks)

    def count(self, verdict: Verdict) -> int:
        """Return the number of checks with a verdict."""
        return sum(check.verdict == verdict for check in self.checks)


def examine(
    store: ObjectStore,
    destination: Destination,
    staging_root: Destination | None = None,
    *,
    object_options: ObjectOptions | None = None,
    clock: Clock | None = None,
    new_id: Callable[[], str] = new_uuid,
) -> Diagnosis:
    """Try everything that jobs do at a destination and at their staging root. Repeatable.

    Whole jobs run in a hidden directory: commits, a replace, an abort, a sweep. The destination's data is not
    changed. The objects and uploads of the checks are removed at the end; if that fails, the last check says
    so. An error of the store is not raised: it fails the check that met it.
    """
    name, clock = f"doctor-{new_id()}", clock or SystemClock()
    options = object_options or ObjectOptions()
    store = with_headers(store, options.of_records)
    # Forget what earlier requests showed of the store: the probes must find it out anew.
    store.profiles[destination.bucket] = StoreProfile()
    home = destination.below(HOME).below(name)
    probes = [*RECORD_PROBES, *DATA_PROBES, REHEARSAL]
    if options != ObjectOptions():
        probes.append(Probe("object options", partial(_try_options, options), ("complete uploads",)))
    checks = _examine(Sandbox(store, destination, home, clock), probes)
    if staging_root is not None and staging_root != destination:
        home = staging_root.below(MAGIC_PREFIX + name)
        checks += _examine(Sandbox(store, staging_root, home, clock), RECORD_PROBES)
    return Diagnosis(
        destination=destination.uri,
        staging_root=staging_root.uri if staging_root is not None else None,
        checks=checks,
    )


#: What to do about an error of a probe; the first that matches counts.
_REMEDIES = {
    AccessDenied: "check the credentials and the policy; s3commit doctor --policy prints what it must allow",
    NoSuchBucket: "create the bucket, or correct its name or the endpoint",
    Unavailable | OutcomeUnknown: "make sure that the store can be reached, and run this again",
    StoreUnsuitable: "use another store",
    S3CommitError: "the store does not support this; use another store, or ask its operator",
}


def _examine(sandbox: Sandbox, probes: Iterable[Probe]) -> list[Check]:
    findings: dict[str, Finding] = {}
    try:
        for probe in probes:
            findings[probe.name] = _try(probe, sandbox, findings)
    finally:
        if findings and findings["bucket"].verdict == "ok":
            findings["nothing left behind"] = _clear(sandbox)
    place = sandbox.destination.uri
    return [Check(name=name, place=place, **found._asdict()) for name, found in findings.items()]


def _try(probe: Probe, sandbox: Sandbox, findings: dict[str, Finding]) -> Finding:
    missing = [name for name in probe.needs if findings[name].verdict in ("failed", "skipped")]
    if missing:
        return Finding("skipped", f"not checked, because of: {', '.join(missing)}")
    try:
        return probe.run(sandbox)
    except S3CommitError as error:
        remedy = next(words for kind, words in _REMEDIES.items() if isinstance(error, kind))
        return Finding("failed", described(error), remedy)


def _clear(sandbox: Sandbox) -> Finding:
    """Remove the probes' objects and uploads."""
    try:
        sandbox.clear()
    except S3CommitError as error:
        return Finding(
            "failed",
            f"objects or uploads may be left below {sandbox.home.uri}: {whole_text(error)}",
            "delete them, or run s3commit sweep",
        )
    return Finding("ok", "all objects and uploads of these checks are removed")


_PARTITION = "rehearsal=1"

#: Seconds between a job's death and its sweep.
_SECONDS = 2.0


def _rehearse(sandbox: Sandbox) -> Finding:
    """Run whole jobs: two append, one replaces, one is aborted and one is swept."""
    sandbox.rehearsed = True
    trial = replace(sandbox, home=sandbox.home.below("rehearsal"))
    conflict_modes: tuple[ConflictMode, ...] = ("append", "append", "replace")
    for conflict_mode, count in zip(conflict_modes, (1, 2, 1), strict=True):
        _write(trial, conflict_mode)
        if len(files := _files(trial)) != count:
            raise StoreUnsuitable(f"a commit with {conflict_mode} left {len(files)} files instead of {count}")
    if not has_object(trial.store, trial.bucket, trial.home.key(SUCCESS)):
        raise StoreUnsuitable("a commit left no _SUCCESS")
    report = _leave(trial).abort(reason="rehearsal")
    if report.uploads < 1 or _files(trial) != files:
        return Finding("failed", f"an abort found {report.uploads} of 1 pending uploads", RECORD_UPLOADS)
    _leave(trial)
    # Times are whole seconds, or finer in listings than in responses: a new one may follow the store's time.
    sandbox.clock.sleep(_SECONDS)
    swept = sweep(trial.store, trial.home, older_than=0, dry_run=False, clock=trial.clock)
    if swept.failures:
        return Finding("failed", f"a sweep failed: {swept.failures[0].reason}", RECORD_UPLOADS)
    if not swept.jobs or _files(trial) != files:
        return Finding("warning", "a sweep did not find a dead job", RECORD_UPLOADS)
    return Finding("ok", "jobs were committed, replaced files, and were aborted and swept")


def _options(conflict_mode: ConflictMode) -> JobOptions:
    return JobOptions(committer="magic", conflict_mode=conflict_mode, track_pending="s3")


def _write(trial: Sandbox, conflict_mode: ConflictMode) -> None:
    """Commit a job with one file."""
    options = _options(conflict_mode)
    job = write_job(trial.home, store=trial.store, job_options=options, clock=trial.clock)
    with job as writer, writer.open(f"{_PARTITION}/part.bin") as file:
        file.write(BODY)


def _leave(trial: Sandbox) -> Job:
    """Return a job with a pending upload, of a task whose stage is never sealed."""
    job = Job.setup(trial.store, trial.home, options=_options("append"), clock=trial.clock)
    with job.task_attempt("rehearsal", "1", "00000", "1") as attempt:
        with attempt.open(f"{_PARTITION}/left.bin") as file:
            file.write(BODY)
        attempt.commit()
    return job


def _files(trial: Sandbox) -> set[str]:
    prefix = trial.home.key(f"{_PARTITION}/")
    return {info.key for info in trial.store.list_objects(trial.bucket, prefix)}


REHEARSAL = Probe("whole jobs", _rehearse, ("objects", "complete uploads", "fencing"))

_SSE = "x-amz-server-side-encryption"
_BUCKET_KEY = f"{_SSE}-bucket-key-enabled"


def _try_options(options: ObjectOptions, sandbox: Sandbox) -> Finding:
    key, upload_id = sandbox.begin("object-options", options.of_data)
    etags = sandbox.send(key, upload_id, BODY)
    sandbox.store.complete_upload(sandbox.bucket, key, upload_id, etags)
    # Some stores send the number of tags with a GET only, not with a HEAD.
    info = sandbox.store.get(sandbox.bucket, key, limit=KIB).info
    lost = list(_lost(options, info))
    if not lost:
        return Finding("ok", "the object has those that a store shows; it shows no ACL")
    is_plain = any(header.startswith(_SSE) and header != _BUCKET_KEY for header, _ in lost)
    return Finding(
        "failed" if is_plain else "warning",
        f"accepted, but on the object {', '.join(f'{header} is {found!r}' for header, found in lost)}",
        "leave out what the store ignores, or use another store; s3:GetObjectTagging shows tags",
    )


def _lost(options: ObjectOptions, info: ObjectInfo) -> Iterator[tuple[str, str | None]]:
    """Yield each header that the options ask for and the object lacks, with the value that it has instead."""
    found = {**info.headers, **{f"{METADATA_PREFIX}{name}": value for name, value in info.metadata.items()}}
    expected = {header: value for header, value in options.of_data.items() if _is_shown(header, value)}
    if options.tags:
        expected[TAG_COUNT] = str(len(options.tags))
    for header, value in expected.items():
        # A KMS key given by its id is shown as an ARN, which ends with the id.
        if not (found.get(header) or "").endswith(value):
            yield header, found.get(header)


def _is_shown(header: str, value: str) -> bool:
    """Return whether a store shows this header of an upload on the finished object."""
    if header in ("x-amz-acl", "x-amz-tagging") or (header.startswith(_SSE) and "alias/" in value):
        return False
    # AWS sends no storage class for its default.
    return (header, value) not in (("x-amz-storage-class", "STANDARD"), (_BUCKET_KEY, "false"))
