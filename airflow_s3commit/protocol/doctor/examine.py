"""Check that a destination, with these credentials, supports what the protocol requires.

The checks write small hidden objects and start uploads, and remove all of them at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from msgspec import Struct

from airflow_s3commit._causes import described, whole_text
from airflow_s3commit._clock import Clock, SystemClock
from airflow_s3commit.exceptions import (
    AccessDenied,
    NoSuchBucket,
    OutcomeUnknown,
    S3CommitError,
    StoreRejected,
    StoreUnsuitable,
    Unavailable,
)
from airflow_s3commit.protocol.doctor.probes import (
    DATA_PROBES,
    RECORD_PROBES,
    Finding,
    Probe,
    Sandbox,
    Verdict,
)
from airflow_s3commit.protocol.doctor.rehearsal import REHEARSALS
from airflow_s3commit.protocol.metadata.context import new_uuid
from airflow_s3commit.protocol.metadata.fitness import BODY
from airflow_s3commit.protocol.model.codec import KIB, Plain
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.layout import HOME, MAGIC_PREFIX
from airflow_s3commit.protocol.model.object_options import ObjectOptions
from airflow_s3commit.store.base import ObjectInfo, ObjectStore
from airflow_s3commit.store.headers import METADATA_PREFIX, TAG_COUNT, with_headers
from airflow_s3commit.store.profile import StoreProfile

#: Name of the check of the clean-up.
_CLEAN_UP = "nothing left behind"

_ENCRYPTION = ("sse", "sse_kms_key_id", "sse_bucket_key")

#: AWS sends no storage class header for objects of this class.
_DEFAULT_CLASS = "STANDARD"

_SSE = "x-amz-server-side-encryption"
_KMS_KEY = f"{_SSE}-aws-kms-key-id"
_BUCKET_KEY = f"{_SSE}-bucket-key-enabled"


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
    progress: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Check at a destination, and at its jobs' staging root, everything that jobs do there. Repeatable.

    Whole jobs run in a hidden directory: commits, a replace, an abort, a sweep. The destination's data is not
    changed. The objects and uploads of the checks are removed at the end; if
    that fails, the last check says so. An error of the store is not raised: it fails its check.

    Args:
        store: The store of the destination.
        destination: The destination.
        staging_root: The directory of the jobs' records, if not below the destination.
        object_options: The object options of the jobs. Each is checked with an upload of its own.
        clock: Source of this machine's time, which is compared with the store's.
        new_id: Source of the id in the name of the directory for the checks' objects.
        progress: Called with the name of each check before it runs.

    """
    name, clock = f"doctor-{new_id()}", clock or SystemClock()
    home = destination.below(HOME).below(name)
    options = object_options or ObjectOptions()
    store = with_headers(store, options.of_records)
    # What was learned of the store before is tried anew.
    store.follow(destination.bucket, StoreProfile())
    probes = (*RECORD_PROBES, *DATA_PROBES, *REHEARSALS, *object_probes(options))
    sandbox = Sandbox(store, destination, home, clock)
    checks = _examine(sandbox, probes, progress)
    if staging_root is not None and staging_root != destination:
        staged = Sandbox(store, staging_root, staging_root.below(MAGIC_PREFIX + name), clock)
        checks += _examine(staged, RECORD_PROBES, progress)
    return Diagnosis(
        destination=destination.uri,
        staging_root=staging_root.uri if staging_root is not None else None,
        checks=checks,
    )


def _examine(sandbox: Sandbox, probes: Iterable[Probe], progress: Callable[[str], None]) -> list[Check]:
    findings: dict[str, Finding] = {}
    try:
        for probe in probes:
            progress(probe.name)
            findings[probe.name] = _try(probe, sandbox, findings)
    finally:
        cleared = _clear(sandbox, findings)
    if cleared is not None:
        findings[_CLEAN_UP] = cleared
    return [
        Check(
            name=name,
            place=sandbox.destination.uri,
            verdict=finding.verdict,
            says=finding.says,
            remedy=finding.remedy,
        )
        for name, finding in findings.items()
    ]


def _try(probe: Probe, sandbox: Sandbox, findings: dict[str, Finding]) -> Finding:
    missing = [name for name in probe.needs if findings[name].verdict in ("failed", "skipped")]
    if missing:
        return Finding("skipped", f"not checked, because of: {', '.join(missing)}")
    try:
        return probe.run(sandbox)
    except S3CommitError as error:
        return Finding("failed", described(error), _remedy(error))


def _clear(sandbox: Sandbox, findings: dict[str, Finding]) -> Finding | None:
    """Remove the probes' objects and uploads; return None if no probe could create any."""
    if not findings or findings["bucket"].verdict != "ok":
        return None
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


def object_probes(options: ObjectOptions) -> Iterator[Probe]:
    """Yield a probe for each option that is set; those of encryption share one."""
    for name in ("sse", "storage_class", "acl", "tags", "headers"):
        if getattr(options, name):
            # A bucket's policy may deny writes without encryption or an ACL, so every upload has them.
            required = (*_ENCRYPTION, "acl") if "x-amz-acl" in options.of_records else _ENCRYPTION
            fields = {field: getattr(options, field) for field in {name, *required}}
            tried = ObjectOptions.from_dict(fields)
            yield Probe(f"object option {name}", partial(_try_option, tried, name), ("complete uploads",))


def _try_option(options: ObjectOptions, name: str, sandbox: Sandbox) -> Finding:
    try:
        key, upload_id = sandbox.begin(f"object-{name}", {}, options.of_data)
        etag = sandbox.store.upload_part(sandbox.bucket, key, upload_id, 1, BODY)
        sandbox.store.complete_upload(sandbox.bucket, key, upload_id, [etag])
        # Some stores send the number of tags with a GET only, not with a HEAD.
        info = sandbox.store.get(sandbox.bucket, key, limit=KIB).info
    except AccessDenied as error:
        return Finding("failed", f"AccessDenied: {error}", _permission(options, name))
    except (StoreRejected, OutcomeUnknown) as error:
        says = f"{type(error).__name__}: {error}"
        return Finding("failed", says, f"the store rejects this {name}: correct it or leave it out")
    return _compare(options, name, info)


def _permission(options: ObjectOptions, name: str) -> str:
    if name == "sse" and options.sse != "AES256":
        key = options.sse_kms_key_id or "the account's key for S3"
        return f"allow kms:GenerateDataKey and kms:Decrypt on {key}, in the role's policy and in the key's"
    if name == "acl":
        return "allow s3:PutObjectAcl; a bucket with disabled ACLs accepts only bucket-owner-full-control"
    if name == "tags":
        return "allow s3:PutObjectTagging"
    return (
        "check what the bucket's policy requires; s3commit doctor --policy prints what the role's must allow"
    )


def _compare(options: ObjectOptions, name: str, info: ObjectInfo) -> Finding:
    """Compare the headers of an object with the option that its upload was started with."""
    if name == "acl":
        return Finding("ok", f"{options.acl} is accepted; whether it is in effect, a HEAD does not show")
    differences = _differences(options, name, info)
    if not differences:
        return Finding("ok", "the object has the option")
    says = f"accepted, but on the object {', '.join(differences)}"
    if name == "sse" and not differences[0].startswith(_BUCKET_KEY):
        remedy = "the store does not encrypt this way: leave it out, or use another store"
        return Finding("failed", says, remedy)
    if name == "tags":
        remedy = "allow s3:GetObjectTagging, without which tags cannot be checked; or the store ignores them"
        return Finding("warning", says, remedy)
    return Finding("warning", says, f"the store ignores it: leave {name} out, or use another store")


def _differences(options: ObjectOptions, name: str, info: ObjectInfo) -> list[str]:
    """Return the headers whose value differs from the option, each with its value."""
    if name == "tags":
        expected = {TAG_COUNT: str(len(options.tags))}
    else:
        is_sse = name == "sse"
        expected = {
            header: value
            for header, value in options.of_data.items()
            if header.startswith(_SSE) == is_sse and _is_shown(options, header, value)
        }
    found = {**info.headers, **{f"{METADATA_PREFIX}{n}": value for n, value in info.metadata.items()}}
    return [
        f"{header} is {found.get(header)!r}"
        for header, value in expected.items()
        # A KMS key given by its id is shown as an ARN, which ends with the id.
        if not (found.get(header) or "").endswith(value)
    ]


def _is_shown(options: ObjectOptions, header: str, value: str) -> bool:
    """Tell whether a store shows a header of an upload, with that value, on its object."""
    if header == "x-amz-acl":
        return False
    if header == _KMS_KEY:
        return "alias/" not in value
    if header == _BUCKET_KEY:
        return value == "true"
    return header != "x-amz-storage-class" or options.storage_class != _DEFAULT_CLASS
