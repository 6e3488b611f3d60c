"""Doctor: does this place, with these credentials, do what the protocol stands on?

Everything is tried out with small hidden objects and uploads, all of which are removed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from airflow_s3commit._causes import described, whole_text
from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import (
    AccessDenied,
    NoSuchBucket,
    OutcomeUnknown,
    S3CommitError,
    Unavailable,
)
from airflow_s3commit.protocol.doctor.object_options import object_probes
from airflow_s3commit.protocol.doctor.probes import (
    DATA_PROBES,
    RECORD_PROBES,
    Finding,
    Probe,
    Sandbox,
    Verdict,
)
from airflow_s3commit.protocol.metadata.context import new_uuid
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import HOME, MAGIC_PREFIX
from airflow_s3commit.protocol.model.object_options import ObjectOptions
from airflow_s3commit.store.base import ObjectStore
from airflow_s3commit.store.headers import with_headers

_TIDY = "nothing left behind"


class Check(Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes:
        name: What it is about.
        place: URI of the destination or staging root it was tried at.
        verdict: ``ok``; ``warning``: jobs work, but something is worse than it could be; ``failed``: jobs
            will fail; ``skipped``: there was no sense in trying.
        says: What was found.
        remedy: What to do about it.

    """

    name: str
    place: str
    verdict: Verdict
    says: str
    remedy: str | None = None


class Diagnosis(Struct, frozen=True, kw_only=True):
    """Everything that was looked at, in order.

    Attributes:
        destination: URI of the destination.
        staging_root: URI of where jobs have their records, if not below it.
        checks: The checks.

    """

    destination: str
    staging_root: str | None
    checks: list[Check]

    @property
    def healthy(self) -> bool:
        """Whether nothing failed; warnings don't count."""
        return all(check.verdict in ("ok", "warning") for check in self.checks)

    def count(self, verdict: Verdict) -> int:
        """Return how many checks ended so."""
        return sum(check.verdict == verdict for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, with its verdict."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain | {"healthy": self.healthy}


def examine(
    store: ObjectStore,
    destination: Destination,
    staging_root: Destination | None = None,
    *,
    object_options: ObjectOptions | None = None,
    clock: Clock | None = None,
    new_id: Callable[[], str] = new_uuid,
    progress: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Try out at a destination, and where its jobs have their records, what jobs will do there.

    Before: anything. After: the same; what was made for the purpose is removed, and if it could not be, the
    last check says what is left. No error of the store is raised: each becomes a check.

    Args:
        store: The store of the destination.
        destination: The destination.
        staging_root: Where jobs have their records, if not below it.
        object_options: How jobs there have their objects kept: each option is tried, and looked for after.
        clock: This machine's clock.
        new_id: Names the directory of this examination.
        progress: Told of each check before it is made.

    """
    name, clock = f"doctor-{new_id()}", clock or SystemClock()
    home = destination.below(HOME).below(name)
    asked = object_options or ObjectOptions()
    store = with_headers(store, asked.of_records)
    probes = (*RECORD_PROBES, *DATA_PROBES, *object_probes(asked))
    checks = _examine(Sandbox(store, destination, home, clock), probes, progress)
    if staging_root is not None and staging_root != destination:
        staged = Sandbox(store, staging_root, staging_root.below(MAGIC_PREFIX + name), clock)
        checks += _examine(staged, RECORD_PROBES, progress)
    return Diagnosis(
        destination=destination.uri,
        staging_root=staging_root.uri if staging_root is not None else None,
        checks=checks,
    )


def _examine(box: Sandbox, probes: Iterable[Probe], progress: Callable[[str], None]) -> list[Check]:
    findings: dict[str, Finding] = {}
    try:
        for probe in probes:
            progress(probe.name)
            findings[probe.name] = _try(probe, box, findings)
    finally:
        tidy = _clear(box, findings)
    if tidy is not None:
        findings[_TIDY] = tidy
    return [
        Check(
            name=name,
            place=box.destination.uri,
            verdict=finding.verdict,
            says=finding.says,
            remedy=finding.remedy,
        )
        for name, finding in findings.items()
    ]


def _try(probe: Probe, box: Sandbox, findings: dict[str, Finding]) -> Finding:
    missing = [name for name in probe.needs if findings[name].verdict in ("failed", "skipped")]
    if missing:
        return Finding("skipped", f"not tried, because of: {', '.join(missing)}")
    try:
        return probe.try_out(box)
    except S3CommitError as error:
        return Finding("failed", described(error), _remedy(error))


def _clear(box: Sandbox, findings: dict[str, Finding]) -> Finding | None:
    """Remove what probes made; None if none made anything."""
    if not findings or findings["bucket"].verdict != "ok":
        return None
    try:
        box.clear()
    except S3CommitError as error:
        return Finding(
            "failed",
            f"objects or uploads may be left below {box.home.uri}: {whole_text(error)}",
            "delete them, or have them swept: s3commit sweep",
        )
    return Finding("ok", "every object and upload made for these checks is removed")


def _remedy(error: S3CommitError) -> str:
    if isinstance(error, AccessDenied):
        return "check the credentials and the policy; s3commit doctor --policy prints what it must allow"
    if isinstance(error, NoSuchBucket):
        return "make the bucket, or correct its name or the endpoint"
    if isinstance(error, Unavailable | OutcomeUnknown):
        return "see that the store can be reached, and run this again"
    return "the store does not support this; use another one, or ask its operator"
