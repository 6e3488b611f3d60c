"""Probes of object options: an upload with each, and a look at what its object has of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from airflow_s3commit.exceptions import AccessDenied, OutcomeUnknown, StoreRejected
from airflow_s3commit.protocol.doctor.sandbox import BODY, Finding, Probe, Sandbox
from airflow_s3commit.protocol.model.codec import KIB
from airflow_s3commit.protocol.model.object_options import ObjectOptions
from airflow_s3commit.store.base import ObjectInfo
from airflow_s3commit.store.headers import METADATA_PREFIX, TAG_COUNT

_ENCRYPTION = ("sse", "sse_kms_key_id", "sse_bucket_key")

_SSE = "x-amz-server-side-encryption"
_BUCKET_KEY = f"{_SSE}-bucket-key-enabled"


def object_probes(options: ObjectOptions) -> Iterator[Probe]:
    """Yield a probe for each option that is set; those of encryption share one."""
    for name in ("sse", "storage_class", "acl", "tags", "headers"):
        if getattr(options, name):
            # A bucket's policy may deny writes without encryption or an ACL, so every upload has them.
            required = (*_ENCRYPTION, "acl") if "x-amz-acl" in options.of_records else _ENCRYPTION
            tried = ObjectOptions.from_dict({one: getattr(options, one) for one in {name, *required}})
            yield Probe(f"object option {name}", partial(_try_option, tried, name), ("complete uploads",))


def _try_option(options: ObjectOptions, name: str, sandbox: Sandbox) -> Finding:
    try:
        key, upload_id = sandbox.begin(f"object-{name}", options.of_data)
        etags = sandbox.send(key, upload_id, BODY)
        sandbox.store.complete_upload(sandbox.bucket, key, upload_id, etags)
        # Some stores send the number of tags with a GET only, not with a HEAD.
        info = sandbox.store.get(sandbox.bucket, key, limit=KIB).info
    except AccessDenied as error:
        return Finding("failed", f"AccessDenied: {error}", _permission(options, name))
    except (StoreRejected, OutcomeUnknown) as error:
        says = f"{type(error).__name__}: {error}"
        return Finding("failed", says, f"the store rejects this {name}: correct it or leave it out")
    if name == "acl":
        return Finding("ok", f"{options.acl} is accepted; whether it is in effect, a HEAD does not show")
    if differences := _differences(options, name, info):
        return _ignored(name, differences)
    return Finding("ok", "the object has the option")


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


def _ignored(name: str, differences: list[str]) -> Finding:
    says = f"accepted, but on the object {', '.join(differences)}"
    if name == "sse" and not differences[0].startswith(_BUCKET_KEY):
        remedy = "the store does not encrypt this way: leave it out, or use another store"
        return Finding("failed", says, remedy)
    if name == "tags":
        remedy = "allow s3:GetObjectTagging, without which tags cannot be checked; or the store ignores them"
        return Finding("warning", says, remedy)
    return Finding("warning", says, f"the store ignores it: leave {name} out, or use another store")


def _differences(options: ObjectOptions, name: str, info: ObjectInfo) -> list[str]:
    """Return the headers whose value on an object differs from the option, each with its value."""
    if name == "tags":
        expected = {TAG_COUNT: str(len(options.tags))}
    else:
        expected = {
            header: value
            for header, value in options.of_data.items()
            if header.startswith(_SSE) == (name == "sse") and _is_shown(header, value)
        }
    found = {**info.headers, **{f"{METADATA_PREFIX}{n}": value for n, value in info.metadata.items()}}
    return [
        f"{header} is {found.get(header)!r}"
        for header, value in expected.items()
        # A KMS key given by its id is shown as an ARN, which ends with the id.
        if not (found.get(header) or "").endswith(value)
    ]


def _is_shown(header: str, value: str) -> bool:
    """Return whether a store shows this header of an upload on its object."""
    if header == "x-amz-acl" or (header.startswith(_SSE) and "alias/" in value):
        return False
    # AWS sends no storage class for its default.
    return (header, value) not in (("x-amz-storage-class", "STANDARD"), (_BUCKET_KEY, "false"))
