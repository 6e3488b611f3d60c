"""Ownership: which records are a job's own, and what it may destroy.

* `check_place`: is this record the job's, and written for this place? A copy is not.
* `is_ours`: is this object the completed upload?
* `why_not`: may this job destroy this thing? Called before every delete and abort.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from airflow_s3commit.exceptions import ForeignRecord
from airflow_s3commit.protocol.model.codec import text_digest
from airflow_s3commit.protocol.model.destination import is_data, is_hidden, join_uri
from airflow_s3commit.protocol.model.layout import SUCCESS, is_canonical, lists_prefix, open_prefix, owner_of

if TYPE_CHECKING:
    from airflow_s3commit.protocol.model.codec import JobOwned
    from airflow_s3commit.protocol.model.destination import Destination
    from airflow_s3commit.protocol.model.job import JobRecord
    from airflow_s3commit.protocol.model.layout import Layout
    from airflow_s3commit.protocol.model.pendingset import PendingUpload
    from airflow_s3commit.store.base import ObjectInfo

#: User metadata of every object: a HEAD shows its job, its upload, and a digest of its destination's URI.
JOB_METADATA = "s3commit-job"
UPLOAD_METADATA = "s3commit-upload"
PLACE_METADATA = "s3commit-place"

#: Proof that a thing is the job's:
#:
#: * ``writer``: this process created it;
#: * ``name``: its file name has the job's id (`owner_of`);
#: * ``record``: a record of the job names this upload, or for an object the ETag that follows from its parts;
#: * ``metadata``: the object carries the job's id;
#: * ``plan``: the job's plan names it, by key and ETag;
#: * ``release``: an entry of the log has released it;
#: * ``staging``: it is in the job's staging.
Proof: TypeAlias = Literal["writer", "name", "record", "metadata", "plan", "release", "staging"]


@dataclass(frozen=True, slots=True)
class Thing:
    """Something that a job is about to destroy.

    Attributes:
        kind: A pending ``upload``, a data ``object``, or a ``record`` of the protocol.
        bucket: Its bucket.
        key: Its key.
        proof: Why it is the job's.

    """

    kind: Literal["upload", "object", "record"]
    bucket: str
    key: str
    proof: Proof


def check_place(record: JobOwned, layout: Layout, where: str) -> None:
    """Raise if a record of a job was written for another job or another place.

    Args:
        record: The record.
        layout: The job among whose records it was found.
        where: URI of the record, for the message.

    Raises:
        ForeignRecord: It is another job's, or was copied here.

    """
    if record.job_id != layout.job_id:
        raise ForeignRecord(f"{where} is of job {record.job_id}, not of {layout.job_id}")
    if record.staging != layout.staging.uri:
        raise ForeignRecord(
            f"{where} was written for {record.staging}, not for {layout.staging.uri}: it was copied here, so"
            " it says nothing of this place, and nobody acts on it"
        )
    if record.destination != layout.destination.uri:
        raise ForeignRecord(
            f"{where} is of a job on {record.destination}, not on {layout.destination.uri}: it was copied"
            " here, and nobody acts on it"
        )


def is_ours(upload: PendingUpload, existing: ObjectInfo) -> bool:
    """Return whether an object is this upload, completed.

    Compares the ids of the job and the upload in the object's metadata; for uploads of Hadoop, which have
    none, the ETag that follows from the parts, unless the object has the id of another job. Under SSE-KMS
    ETags follow from nothing that is known, so there the file's name must have the job's id, and size and
    number of parts must agree: no one else writes a file of that name, and of a job's own uploads of one key
    only the sealed one is completed.
    """
    carried = existing.metadata.get(JOB_METADATA)
    if upload.s3commit is not None:
        return carried == upload.jobId and existing.metadata.get(UPLOAD_METADATA) == upload.s3commit.upload
    if carried not in (None, upload.jobId):
        return False
    if existing.size != upload.length:
        return False
    if upload.expected_etag == existing.etag:
        return True
    is_kms = existing.headers.get("x-amz-server-side-encryption", "").startswith("aws:kms")
    is_named = owner_of(upload.destinationKey) == upload.jobId
    return is_kms and is_named and existing.etag.endswith(f"-{len(upload.etags)}")


def object_metadata(destination: Destination, job_id: str, upload: str) -> dict[str, str]:
    """Return the user metadata of a job's object."""
    place = text_digest(destination.uri).hex()
    return {JOB_METADATA: job_id, UPLOAD_METADATA: upload, PLACE_METADATA: place}


def is_written_here(existing: ObjectInfo, destination: Destination) -> bool:
    """Return whether a job wrote an object to this destination, by its metadata; not so for a copy.

    Objects that Hadoop uploaded name no destination: they count as written here.
    """
    metadata = existing.metadata
    place = text_digest(destination.uri).hex()
    return JOB_METADATA in metadata and metadata.get(PLACE_METADATA, place) == place


def why_not(layout: Layout, record: JobRecord | None, thing: Thing) -> str | None:
    """Return why a job may not destroy a thing; None if it may.

    Args:
        layout: The job.
        record: Its own verified record; None if that is gone.
        thing: What to destroy.

    """
    if thing.kind == "record":
        return _why_not_record(layout, thing)
    destination = layout.destination
    relative = destination.relative(thing.key)
    if thing.bucket != destination.bucket or relative is None:
        return f"{_uri(thing)} lies outside {destination.uri}"
    if thing.proof == "writer" or layout.is_own_upload(thing.key):
        return None
    if not is_data(relative):
        return f"{_uri(thing)} is no data file: readers do not see it"
    return None if thing.proof in ("plan", "release") else _why_not_output(layout, record, thing)


def _why_not_output(layout: Layout, record: JobRecord | None, thing: Thing) -> str | None:
    """Check data that the job may have written: by its name, or if Hadoop named it, by the job's records."""
    owner = owner_of(thing.key)
    if owner == layout.job_id:
        return None
    if thing.proof == "name":
        return f"{_uri(thing)} does not have the id of job {layout.job_id} in its name"
    if record is not None and record.adopted:
        return None if thing.proof == "record" else f"no record of job {layout.job_id} names {_uri(thing)}"
    if owner is not None:
        return f"{_uri(thing)} is of job {owner}, by its name"
    if record is not None and is_canonical(layout.job_id):
        return f"{_uri(thing)} does not have the id of job {layout.job_id} in its name, as all of its files"
    # A job of Hadoop, whose id is no UUID, or one whose own record is gone: its records decide.
    return None


def _why_not_record(layout: Layout, thing: Thing) -> str | None:
    """Check a record: it is in the job's staging, or one of the job's records at the destination."""
    # The staging's own key counts: Hadoop's mkdirs leaves an empty object there.
    if thing.bucket == layout.staging.bucket and thing.key.startswith(layout.staging.prefix):
        return None
    own = (open_prefix(layout.destination, layout.job_id), lists_prefix(layout.destination, layout.job_id))
    if thing.bucket == layout.destination.bucket and thing.key.startswith(own):
        return None
    if thing.bucket == layout.destination.bucket and _is_marker(layout, thing.key):
        return None
    return f"{_uri(thing)} is no record of job {layout.job_id}"


def _is_marker(layout: Layout, key: str) -> bool:
    """Return whether this is the ``_SUCCESS`` of a partition."""
    partition, _, name = (layout.destination.relative(key) or "").rpartition("/")
    return name == SUCCESS and bool(partition) and not is_hidden(partition)


def _uri(thing: Thing) -> str:
    return join_uri(thing.bucket, thing.key)
