"""Check that a destination, with these credentials, supports what the protocol requires.

The checks write small hidden objects and start uploads, and remove all of them at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

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
from airflow_s3commit.protocol.doctor.object_probes import object_probes
from airflow_s3commit.protocol.doctor.probes import DATA_PROBES, RECORD_PROBES
from airflow_s3commit.protocol.doctor.rehearsal import REHEARSALS
from airflow_s3commit.protocol.doctor.sandbox import Finding, Probe, Sandbox, Verdict
from airflow_s3commit.protocol.metadata.context import new_uuid
from airflow_s3commit.protocol.model.codec import Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import HOME, MAGIC_PREFIX
from airflow_s3commit.protocol.model.object_options import ObjectOptions
from airflow_s3commit.store.base import ObjectStore
from airflow_s3commit.store.headers import with_headers
from airflow_s3commit.store.profile import StoreProfile


class Check(Struct, frozen=True, kw_only=True):
    """The result of one check.

    Attributes:
        name: Name of the check: ``conditional create``.
        place: URI of the checked destination or staging root.
        verdict: ``ok``; ``warning``: jobs work, with a drawback; ``failed``: jobs will fail; ``skipped``: a
            check that this one depends on did not succeed.
        says: The finding, in a sentence.
        remedy: What to do about it; None if nothing.

    """

    name: str
    place: str
    verdict: Verdict
    says: str
    remedy: str | None = None


class Diagnosis(Plain, Struct, frozen=True, kw_only=True):
    """The results of all checks.

    Attributes:
        destination: URI of the destination.
        staging_root: URI of the directory of the jobs' records, if not below the destination.
        checks: The checks, in the order in which they ran.

    """

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
    """Check at a destination, and at its jobs' staging root, everything that jobs do there. Repeatable.

    Whole jobs run in a hidden directory: commits, a replace, an abort, a sweep. The destination's data is not
    changed. The objects and uploads of the checks are removed at the end; if that fails, the last check says
    so. An error of the store is not raised: it fails its check.

    Args:
        store: The store of the destination.
        destination: The destination.
        staging_root: The directory of the jobs' records, if not below the destination.
        object_options: The object options of the jobs. Each is checked with an upload of its own.
        clock: Source of this machine's time, which is compared with the store's.
        new_id: Source of the id in the name of the directory for the checks' objects.

    """
    name, clock = f"doctor-{new_id()}", clock or SystemClock()
    options = object_options or ObjectOptions()
    store = with_headers(store, options.of_records)
    # What was learned of the store before is tried anew.
    store.follow(destination.bucket, StoreProfile())
    home = destination.below(HOME).below(name)
    probes = (*RECORD_PROBES, *DATA_PROBES, *REHEARSALS, *object_probes(options))
    checks = _examine(Sandbox(store, destination, home, clock), probes)
    if staging_root is not None and staging_root != destination:
        home = staging_root.below(MAGIC_PREFIX + name)
        checks += _examine(Sandbox(store, staging_root, home, clock), RECORD_PROBES)
    return Diagnosis(
        destination=destination.uri,
        staging_root=staging_root.uri if staging_root is not None else None,
        checks=checks,
    )


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
        return Finding("failed", described(error), _remedy(error))


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


def _remedy(error: S3CommitError) -> str:
    if isinstance(error, AccessDenied):
        return "check the credentials and the policy; s3commit doctor --policy prints what it must allow"
    if isinstance(error, NoSuchBucket):
        return "create the bucket, or correct its name or the endpoint"
    if isinstance(error, Unavailable | OutcomeUnknown):
        return "make sure that the store can be reached, and run this again"
    if isinstance(error, StoreUnsuitable):
        return "use another store"
    return "the store does not support this; use another store, or ask its operator"
