"""Every key and prefix of the protocol.

The staging prefix is that of Hadoop's magic committer (``__magic_job-<job id>``), so its tools recognise it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict
from uuid import UUID

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.model.destination import Destination

#: Start of the name of a job's staging directory (Hadoop's magic committer, since 3.3.7).
MAGIC_PREFIX = "__magic_job-"

#: Ending of a committed task attempt's list of uploads.
PENDINGSET_SUFFIX = ".pendingset"

#: Ending of the record of one upload.
PENDING_SUFFIX = ".pending"

#: The name of a job's record.
RECORD = "job.json"

#: The marker that readers and sensors wait for.
SUCCESS = "_SUCCESS"

#: The directory of a destination for its versions as a Delta table. Its name is Delta's.
DELTA_LOG = "_delta_log"

#: The directory of a destination for the log and what belongs to it. A writer of data may be denied all of
#: it but to read receipts and the records of jobs.
HOME = "_s3commit"

#: Below a destination: the records of jobs whose clean-up is not finished; the log, and its checkpoints.
OPEN_JOBS, LOG, CHECKPOINTS = f"{HOME}/open/", f"{HOME}/log/", f"{HOME}/checkpoints/"

#: Prefix of the keys of a job's probes of the store, and the key of probes of the store's time.
PROBES, TIME = f"{HOME}/probe-", f"{HOME}/time"

#: The versions of a destination as a Delta table.
VERSIONS = f"{DELTA_LOG}/"

_ENTRY_DIGITS = 20

#: The name of a version of a Delta table, or of an object of a checkpoint; not that of a copy beside it.
_DELTA_NAME = re.compile(rf"([0-9]{{{_ENTRY_DIGITS}}})\.(json|checkpoint\..+)")

_CHECKPOINT_SUFFIX = ".jsonl.gz"

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

_is_uuid = re.compile(_UUID).fullmatch

# What Spark appends to a name that it is given: a bucket (``_00001``), a file counter (``-c000``, ``.c000``).
_OWNER = re.compile(rf"-({_UUID})(?:_\d+|-c\d+)*(?=\.|\Z)")

_LIST_NAME = re.compile(r"[0-9a-f]{64}\.jsonl")

_FILE_LIST = re.compile(rf"(?:\A|/){HOME}/lists/({_UUID})-{_LIST_NAME.pattern}\Z")

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")

_STEP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")

_ATTEMPT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.]{0,127}")


def check_id(value: str, what: str = "job id") -> str:
    """Return an id that may become part of a key; `InvalidRecord` if it cannot.

    An id has 1 to 128 letters, digits, ``-`` and ``_``; that of a stage or task may have ``.`` too. That of
    an attempt has letters, digits and ``.`` alone, so that no two attempts share a key.
    """
    is_job, is_attempt = what == "job id", what.endswith("attempt")
    pattern = _ID if is_job else _ATTEMPT_ID if is_attempt else _STEP_ID
    if not pattern.fullmatch(value):
        more = " and '.'" if is_attempt else ", '-' and '_'" if is_job else ", '-', '_' and '.'"
        made = f"1 to 128 letters, digits{more}, with a letter or digit first"
        raise InvalidRecord(f"{what} {value!r} is not made of {made}")
    return value


def is_id(job_id: str) -> bool:
    """Return whether this can be a job's id, so that keys can be made of it."""
    return _ID.fullmatch(job_id) is not None


def is_canonical(job_id: str) -> bool:
    """Return whether a job id is a canonical UUID: lower case, with hyphens."""
    return _is_uuid(job_id) is not None


def check_new_id(job_id: str) -> str:
    """Return a new job's id; `InvalidRecord` if it is no canonical UUID, which file names are searched by."""
    if is_canonical(job_id):
        return job_id
    try:
        advice = f"write it as {UUID(job_id)}"
    except ValueError:
        advice = "leave job_id out, and give people something to read with name="
    raise InvalidRecord(f"job id {job_id!r} is not a UUID in lower case with hyphens: {advice}")


def partition_of(relative_path: str) -> str:
    """Return the partition of a file: its directory, without a slash at the end; ``""`` for the root."""
    return relative_path.rpartition("/")[0]


def is_below(partition: str, directories: Iterable[str]) -> bool:
    """Return whether a partition is one of some directories, or lies below one; ``""`` has all below it."""
    return any(not name or f"{partition}/".startswith(f"{name}/") for name in directories)


def unique_name(relative_path: str, job_id: str) -> str:
    """Insert ``-<job id>`` before the first dot of the last element, unless `owner_of` finds the job already.

    Hadoop does the same (``Paths.addUUID``), but skips paths that have the id anywhere.
    """
    directory, slash, name = relative_path.rpartition("/")
    if _is_named_by(name, job_id):
        return relative_path
    stem, dot, ending = name.partition(".")
    return f"{directory}{slash}{stem}-{job_id}{dot}{ending}"


def owner_of(key: str) -> str | None:
    """Return the job whose id is in a file name; None if there is none.

    That is the first ``-<UUID>`` of the last path element that is followed by ``.``, by a suffix of Spark
    (``-c<digits>``, ``_<digits>``) or by nothing. So a key has at most one owner, and directories such as
    ``dt=<UUID>`` do not count. A long list of files belongs to the job that wrote it.
    """
    found = _OWNER.search(key, key.rfind("/") + 1) or _FILE_LIST.search(key)
    return found[1] if found is not None else None


def _is_named_by(name: str, job_id: str) -> bool:
    if is_canonical(job_id):
        return owner_of(name) == job_id
    # An id of Hadoop: `owner_of` does not recognise it, so it claims nothing.
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(job_id)}(?![A-Za-z0-9_-])", name) is not None


#: In place of a job's id: in the name of the list of the files that are older than the log.
OLDER_DATA = "older-data"


def receipt_key(destination: Destination, job_id: str) -> str:
    """Return the key of a job's receipt: a copy of the entry that ended it, which is never deleted."""
    return f"{destination.prefix}{HOME}/jobs/{check_id(job_id)}.json"


def open_prefix(destination: Destination, job_id: str) -> str:
    """Return the prefix of the records of one job whose clean-up is not finished."""
    return f"{destination.prefix}{OPEN_JOBS}{check_id(job_id)}/"


def job_key(destination: Destination, job_id: str) -> str:
    """Return the key of a job's `JobRecord`, the last of its records to be deleted."""
    return f"{open_prefix(destination, job_id)}{RECORD}"


def seal_key(destination: Destination, job_id: str) -> str:
    """Return the key of a job's seal."""
    return f"{open_prefix(destination, job_id)}sealed.json"


def lists_prefix(destination: Destination, job_id: str) -> str:
    """Return the prefix of a job's lists of files, and of lists of jobs whose ids begin with its id."""
    return f"{destination.prefix}{HOME}/lists/{check_id(job_id)}-"


def is_list(destination: Destination, job_id: str, key: str) -> bool:
    """Return whether a key is that of one of a job's lists of files; other ids may begin with its id."""
    prefix = lists_prefix(destination, job_id)
    is_named = key.startswith(prefix) and _LIST_NAME.fullmatch(key, len(prefix)) is not None
    return is_named and job_id != OLDER_DATA


def list_key(destination: Destination, job_id: str, sha256: str) -> str:
    """Return the key of a list of files, by its SHA-256: what a key holds never changes."""
    return f"{lists_prefix(destination, job_id)}{sha256}.jsonl"


def entry_key(destination: Destination, number: int) -> str:
    """Return the key of an entry of the log; keys sort as their numbers do."""
    return f"{destination.prefix}{LOG}{number:0{_ENTRY_DIGITS}d}.json"


def entry_number(destination: Destination, key: str) -> int | None:
    """Return the number of an entry by its key; None for any other key."""
    return _number_in(key, destination.prefix + LOG, ".json")


def version_key(destination: Destination, version: int) -> str:
    """Return the key of a version of a Delta table; keys sort as their versions do."""
    return f"{destination.prefix}{VERSIONS}{version:0{_ENTRY_DIGITS}d}.json"


def delta_version(destination: Destination, key: str) -> int | None:
    """Return the version of a key of a Delta table's log, a checkpoint's too; None for any other key."""
    found = _DELTA_NAME.fullmatch(key.removeprefix(destination.prefix + VERSIONS))
    return int(found[1]) if found else None


def checkpoint_key(destination: Destination, number: int) -> str:
    """Return the key of the checkpoint of the log up to an entry; keys sort as their numbers do."""
    return f"{destination.prefix}{CHECKPOINTS}{number:0{_ENTRY_DIGITS}d}{_CHECKPOINT_SUFFIX}"


def checkpoint_number(destination: Destination, key: str) -> int | None:
    """Return the number of the last entry of a checkpoint by its key; None for any other key."""
    return _number_in(key, destination.prefix + CHECKPOINTS, _CHECKPOINT_SUFFIX)


def _number_in(key: str, prefix: str, suffix: str) -> int | None:
    name = key.removeprefix(prefix).removesuffix(suffix)
    number = int(name) if len(name) == _ENTRY_DIGITS and name.isascii() and name.isdigit() else 0
    return number if number and key == f"{prefix}{name}{suffix}" else None


class Place(TypedDict):
    """The fields of every record that name its job and place."""

    job_id: str
    destination: str
    staging: str


@dataclass(frozen=True, slots=True)
class Layout:
    """The keys of one job, whose staging is called ``__magic_job-<job id>``.

    Raises `InvalidRecord` if the staging is not one of this job, or the id cannot be part of a key.
    """

    destination: Destination
    staging: Destination
    job_id: str

    def __post_init__(self) -> None:
        """Check the staging's name: everything below a staging is deleted at the end."""
        check_id(self.job_id)
        if not f"/{self.staging.prefix}".endswith(f"/{MAGIC_PREFIX}{self.job_id}/"):
            raise InvalidRecord(f"{self.staging.uri} is not the staging of job {self.job_id}")

    @classmethod
    def of(cls, destination: Destination, job_id: str, staging_root: Destination | None = None) -> Layout:
        """Return the layout of a job whose staging is below its destination, or below ``staging_root``."""
        root = staging_root or destination
        return cls(destination, root.below(MAGIC_PREFIX + job_id), job_id)

    @property
    def is_below_destination(self) -> bool:
        """Whether the staging is below the destination, the default."""
        return self.staging == self.destination.below(MAGIC_PREFIX + self.job_id)

    @property
    def place(self) -> Place:
        """The fields of every record of the job that name its job and place."""
        return {"job_id": self.job_id, "destination": self.destination.uri, "staging": self.staging.uri}

    @property
    def stages(self) -> str:
        """Prefix of all stage attempts, in the staging bucket."""
        return f"{self.staging.prefix}stages/"

    def stage(self, stage: str, stage_attempt: str) -> str:
        """Return the prefix of one stage attempt, in the staging bucket."""
        check_id(stage, "stage")
        check_id(stage_attempt, "stage attempt")
        return f"{self.stages}{stage}-{stage_attempt}/"

    def tasks(self, stage: str, stage_attempt: str) -> str:
        """Return the prefix of a stage attempt's pendingsets, in the staging bucket."""
        return self.stage(stage, stage_attempt) + "tasks/"

    def pendingset(self, stage: str, stage_attempt: str, task: str, attempt: str) -> str:
        """Return the key of one task attempt's pendingset, in the staging bucket."""
        check_id(task, "task")
        check_id(attempt, "task attempt")
        return f"{self.tasks(stage, stage_attempt)}{task}_{attempt}{PENDINGSET_SUFFIX}"

    def stage_seal(self, stage: str, stage_attempt: str) -> str:
        """Return the key of a stage attempt's `StageSealRecord`, in the staging bucket."""
        return self.stage(stage, stage_attempt) + "sealed.json"

    def driver_seals(self, stage: str, stage_attempt: str) -> str:
        """Return the prefix of the Spark drivers' records of a stage attempt, in the staging bucket."""
        return self.stage(stage, stage_attempt) + "spark/"

    @property
    def success(self) -> str:
        """Key of the destination's ``_SUCCESS``."""
        return self.destination.prefix + SUCCESS

    def partition_success(self, partition: str) -> str:
        """Return the key of a partition's ``_SUCCESS``."""
        return f"{self.destination.prefix}{partition}/{SUCCESS}"

    @property
    def probe(self) -> str:
        """Key of the uploads and objects with which the job probes its store; it removes them at once."""
        return f"{self.destination.prefix}{PROBES}{self.job_id}"

    def is_own_upload(self, key: str) -> bool:
        """Return whether a key is that of a probe or of a list of files: uploads of the job besides data."""
        return key == self.probe or is_list(self.destination, self.job_id, key)


#: The directory within a magic directory below which relative paths are kept.
BASE = "__base"
