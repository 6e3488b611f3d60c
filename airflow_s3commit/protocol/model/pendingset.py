"""The list of one task attempt's uploads, in the format of Hadoop's S3A committers.

`PendingUpload` is Hadoop's ``SinglePendingCommit`` (version 2), `PendingSet` its ``PendingSet`` (version 3);
field names and order are theirs, ours ride in the extra field ``s3commit``, which Hadoop's loader ignores.
Up to Hadoop 3.4.1 the ETags of an upload's parts are strings; from 3.4.2 and 3.5 on they are objects with the
part's checksum beside them, under the same version number. Both are read.
Source: ``org.apache.hadoop.fs.s3a.commit.files`` in Apache Hadoop 3.3 to 3.5.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr

from airflow_s3commit.protocol.model.codec import (
    Count,
    Integer,
    Line,
    Milliseconds,
    Prose,
    Schemas,
    Text,
    decode,
    largest,
)
from airflow_s3commit.protocol.model.job import ObjectOptions, PendingsetFormat
from airflow_s3commit.protocol.model.layout import PENDING_SUFFIX, PENDINGSET_SUFFIX
from airflow_s3commit.protocol.model.sealed_job import Counts, KnownColumns
from airflow_s3commit.store.base import MAX_PARTS, CheckedEtag, PartEtag

_MD5 = re.compile("[0-9a-fA-F]{32}")

#: Checksums that a completion can name. Others are left out of it, as Hadoop does.
_CHECKSUMS = frozenset({"CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"})


class IOStatistics(Struct, frozen=True, kw_only=True):
    """Hadoop's ``IOStatisticsSnapshot``."""

    counters: dict[Line, Integer] = field(default_factory=dict)
    gauges: dict[Line, Integer] = field(default_factory=dict)
    minimums: dict[Line, Integer] = field(default_factory=dict)
    maximums: dict[Line, Integer] = field(default_factory=dict)
    meanstatistics: dict[Line, dict[Line, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse nested values, which could not be encoded again."""
        for name, mean in self.meanstatistics.items():
            if any(isinstance(value, list | dict) for value in mean.values()):
                raise ValueError(f"the mean statistic {name} is nested too deep")


class UploadExtra(Struct, frozen=True, kw_only=True):
    """Our fields of an upload, beyond Hadoop's.

    Attributes:
        upload: A UUID that the finished object carries as user metadata ``s3commit-upload``.
        rows: Rows in the file, where the format has rows.
        statistics: What the writer knows of each column.
    """

    upload: Text
    rows: Count | None = None
    statistics: KnownColumns | None = None


class UploadEtag(Struct, frozen=True):
    """One part in the completion of an upload (Hadoop's ``UploadEtag``).

    Attributes:
        checksumAlgorithm: S3's name of the checksum's algorithm; None without a checksum.
        checksum: The checksum that the part was uploaded with, in Base64.
    """

    etag: Text
    checksumAlgorithm: Line | None = None  # noqa: N815 - Hadoop's name
    checksum: Line | None = None

    def __post_init__(self) -> None:
        """Drop the quotes that HTTP puts around an ETag, and Hadoop keeps."""
        if '"' in self.etag:
            force_setattr(self, "etag", self.etag.strip('"'))


class PendingUpload(Struct, frozen=True, kw_only=True):
    """A multipart upload with all parts, not completed (Hadoop's ``SinglePendingCommit``, version 2).

    Attributes:
        filename: The file it was loaded from; not trusted.
        uri: URI of the final object, or of the path under a magic directory, as ``java.net.URI`` parses it.
        jobId: The job's id; Hadoop leaves it empty in some committers.
        taskId: The task attempt's id; as above.
        etags: Each part, from part 1 on: its ETag and checksum, or for Hadoop up to 3.4.1 its ETag alone.
        length: Bytes of the final object.
        s3commit: Our fields; None in files that Hadoop wrote.
    """

    version: int = 2
    filename: Line | None = None
    uri: Text
    uploadId: Text  # noqa: N815 - Hadoop's name, as are the next ones in this case
    bucket: Text
    destinationKey: Text  # noqa: N815
    created: Milliseconds = 0
    saved: Milliseconds = 0
    date: Line | None = ""
    jobId: Line | None = ""  # noqa: N815
    taskId: Line | None = ""  # noqa: N815
    text: Prose | None = ""
    etags: Annotated[list[Text | UploadEtag], Meta(max_length=MAX_PARTS)]
    extraData: dict[Line, Prose] | None = field(default_factory=dict)  # noqa: N815
    length: Count
    partCount: Integer = 0  # noqa: N815
    iostatistics: IOStatistics | None = None
    s3commit: UploadExtra | None = None

    def __post_init__(self) -> None:
        """Refuse another version; drop the quotes around bare ETags."""
        if self.version != 2:  # noqa: PLR2004 - the format's version
            raise ValueError(f"SinglePendingCommit version {self.version}, not 2")
        if any(isinstance(etag, str) and '"' in etag for etag in self.etags):
            bare = [etag.strip('"') if isinstance(etag, str) else etag for etag in self.etags]
            force_setattr(self, "etags", bare)

    @property
    def counts(self) -> Counts:
        """The totals of the one file, with what is known of its rows and columns."""
        rows, columns = (self.s3commit.rows, self.s3commit.statistics) if self.s3commit else (None, None)
        return Counts(files=1, bytes=self.length, rows=rows, columns=columns)

    @property
    def expected_etag(self) -> str:
        """The ETag of the completed object: ``md5(concat(md5(part)))-<parts>``.

        Empty if parts' ETags are no MD5s (SSE-KMS, SSE-C, some stores): only metadata identifies objects.
        """
        digest = hashlib.md5(usedforsecurity=False)
        for etag in self.bare_etags:
            if not _MD5.fullmatch(etag):
                return ""
            digest.update(bytes.fromhex(etag))
        return f"{digest.hexdigest()}-{len(self.etags)}"

    @property
    def bare_etags(self) -> list[str]:
        """The parts' ETags without checksums."""
        return [etag if isinstance(etag, str) else etag.etag for etag in self.etags]

    @property
    def part_etags(self) -> list[PartEtag]:
        """The parts for the completion of the upload."""
        return [etag if isinstance(etag, str) else _part_etag(etag) for etag in self.etags]

    def in_format(self, wanted: PendingsetFormat) -> PendingUpload:
        """Return the upload with its ETags in the format of some releases of Hadoop.

        The format of ``hadoop-3.3`` drops checksums.
        """
        if wanted == "hadoop-3.3":
            etags: list[str | UploadEtag] = list(self.bare_etags)
        else:
            etags = [UploadEtag(etag) if isinstance(etag, str) else etag for etag in self.etags]
        return msgspec.structs.replace(self, etags=etags)


def _part_etag(etag: UploadEtag) -> PartEtag:
    if etag.checksum is None or etag.checksumAlgorithm not in _CHECKSUMS:
        return etag.etag
    return CheckedEtag(etag.etag, etag.checksumAlgorithm, etag.checksum)


class TaskExtra(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The task attempt of a pendingset.

    Attributes:
        nonce: Unique to each writer.
        schemas: The schemas of its files; empty if that of one is unknown.
        object_options: The options that its uploads were started with; None if S3A started them.
    """

    stage: Text
    stage_attempt: Text
    task: Text
    attempt: Text
    nonce: Text
    schemas: Schemas = field(default_factory=list)
    object_options: ObjectOptions | None = None


class PendingSet(Struct, frozen=True, kw_only=True):
    """All uploads of one committed task attempt (Hadoop's ``PendingSet``, version 3).

    Attributes:
        jobId: The job's id; Hadoop's staging committers leave it empty.
        commits: The uploads; none for a task without output.
        s3commit: Our fields; None in files that Hadoop wrote.
    """

    version: int = 3
    jobId: Line | None = ""  # noqa: N815 - Hadoop's name
    commits: list[PendingUpload]
    iostatistics: IOStatistics | None = None
    s3commit: TaskExtra | None = None

    def __post_init__(self) -> None:
        """Refuse another version, and two uploads of one key."""
        if self.version != 3:  # noqa: PLR2004 - the format's version
            raise ValueError(f"PendingSet version {self.version}, not 3")
        keys = set()
        for commit in self.commits:
            if commit.destinationKey in keys:
                raise ValueError(f"{commit.destinationKey} is written by more than one pending upload")
            keys.add(commit.destinationKey)


def pending_bytes(key: str) -> int:
    """Return the maximum bytes to read at a key: a ``.pending`` by its suffix, or else a pendingset."""
    return largest(PendingUpload if key.endswith(PENDING_SUFFIX) else PendingSet)


def decode_uploads(body: bytes, where: str) -> list[PendingUpload]:
    """Read the uploads of a pendingset, or the one upload of a ``.pending``, by the suffix of the name."""
    if where.endswith(PENDINGSET_SUFFIX):
        return decode(PendingSet, body, where).commits
    return [decode(PendingUpload, body, where)]
