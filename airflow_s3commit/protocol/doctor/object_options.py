"""Trying out how a store keeps objects: an upload for each option that is asked for, and a look at it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from airflow_s3commit.exceptions import AccessDenied, OutcomeUnknown, StoreRejected
from airflow_s3commit.protocol.doctor.probes import BODY, Finding, Probe, Sandbox
from airflow_s3commit.protocol.model.limits import KIB
from airflow_s3commit.protocol.model.object_options import ObjectOptions
from airflow_s3commit.store.base import ObjectInfo
from airflow_s3commit.store.headers import METADATA_PREFIX, TAG_COUNT

_ENCRYPTION = ("sse", "sse_kms_key_id", "sse_bucket_key")

#: Of AWS: an object of this class says nothing of its class.
_DEFAULT_CLASS = "STANDARD"

_SSE = "x-amz-server-side-encryption"
_KMS_KEY = f"{_SSE}-aws-kms-key-id"
_BUCKET_KEY = f"{_SSE}-bucket-key-enabled"


def object_probes(options: ObjectOptions) -> Iterator[Probe]:
    """Yield a probe for each thing that the options ask for; encryption is one thing."""
    for name in ("sse", "storage_class", "acl", "tags", "headers"):
        if getattr(options, name):
            # Each upload has what records have too: a bucket's policy may deny any that has not.
            needed = (*_ENCRYPTION, "acl") if "x-amz-acl" in options.of_records else _ENCRYPTION
            fields = {field: getattr(options, field) for field in {name, *needed}}
            asked = ObjectOptions.from_dict(fields)
            yield Probe(f"object option {name}", partial(_try, asked, name), ("complete uploads",))


def required_actions(options: ObjectOptions) -> tuple[str, ...]:
    """Return what a policy must allow on data, besides what every job needs."""
    tagging = ("s3:PutObjectTagging",) if options.tags else ()
    return (*tagging, "s3:PutObjectAcl") if options.acl else tagging


def _try(asked: ObjectOptions, name: str, box: Sandbox) -> Finding:
    try:
        key, upload_id = box.begin(f"object-{name}", {}, asked.of_data)
        etag = box.store.upload_part(box.bucket, key, upload_id, 1, BODY)
        box.store.complete_upload(box.bucket, key, upload_id, [etag])
        # A GET says how many tags there are, on stores whose HEAD does not.
        info = box.store.get(box.bucket, key, limit=KIB).info
    except AccessDenied as error:
        return Finding("failed", f"AccessDenied: {error}", _permission(asked, name))
    except (StoreRejected, OutcomeUnknown) as error:
        says = f"{type(error).__name__}: {error}"
        return Finding("failed", says, f"the store does not take this {name}: correct it or leave it out")
    return _judged(asked, name, info)


def _permission(asked: ObjectOptions, name: str) -> str:
    if name == "sse" and asked.sse != "AES256":
        key = asked.sse_kms_key_id or "the account's key for S3"
        return f"allow kms:GenerateDataKey and kms:Decrypt on {key}, in the role's policy and in the key's"
    if name == "acl":
        return "allow s3:PutObjectAcl; a bucket whose ACLs are off takes bucket-owner-full-control only"
    if name == "tags":
        return "allow s3:PutObjectTagging"
    return "see what the bucket's policy asks for; s3commit doctor --policy prints what the role's must allow"


def _judged(asked: ObjectOptions, name: str, info: ObjectInfo) -> Finding:
    """Compare what was asked for with what the store says of the object."""
    if name == "acl":
        return Finding("ok", f"{asked.acl} is taken; that it holds, no HEAD shows")
    others = _others(asked, name, info)
    if not others:
        return Finding("ok", "the object has what was asked for")
    says = f"taken, but the object shows otherwise: {', '.join(others)}"
    if name == "sse" and not others[0].startswith(_BUCKET_KEY):
        return Finding("failed", says, "the store does not encrypt so: leave it out, or use another store")
    if name == "tags":
        return Finding("warning", says, "allow s3:GetObjectTagging to see them; or the store ignores them")
    return Finding("warning", says, f"the store ignores it: leave {name} out, or use another store")


def _others(asked: ObjectOptions, name: str, info: ObjectInfo) -> list[str]:
    """Return which headers an object does not have as they were asked for, with what it has instead."""
    if name == "tags":
        expected = {TAG_COUNT: str(len(asked.tags))}
    else:
        is_sse = name == "sse"
        expected = {
            header: value
            for header, value in asked.of_data.items()
            if header.startswith(_SSE) == is_sse and _is_told(asked, header, value)
        }
    found = {**info.headers, **{f"{METADATA_PREFIX}{n}": value for n, value in info.metadata.items()}}
    return [
        f"{header} is {found.get(header)!r}"
        for header, value in expected.items()
        # A key that was named by its id is told by its ARN.
        if not (found.get(header) or "").endswith(value)
    ]


def _is_told(asked: ObjectOptions, header: str, value: str) -> bool:
    if header == "x-amz-acl":
        return False
    if header == _KMS_KEY:
        return "alias/" not in value
    if header == _BUCKET_KEY:
        return value == "true"
    return header != "x-amz-storage-class" or asked.storage_class != _DEFAULT_CLASS
