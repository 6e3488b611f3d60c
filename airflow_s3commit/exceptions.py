"""Every error this package raises, in one tree whose first level is the outcome.

::

    S3CommitError
    ├── DidNotHappen            nothing was changed by the call: safe to clean up, often safe to retry
    │   ├── NoSuchKey
    │   ├── NoSuchBucket
    │   ├── NoSuchUpload        decides nothing by itself: the upload was completed, aborted, or never was
    │   ├── Unavailable         throttled or refused before it began; the same call may go through later
    │   ├── AccessDenied
    │   ├── StoreRejected       the store read the request and said no
    │   └── JobFailed           the commit could not be finished and was rolled back
    ├── OutcomeUnknown          it may have happened: look first, delete and abort nothing
    └── Refused                 a rule said no: the same call will be refused again
        ├── PreconditionFailed  a conditional write met another writer
        ├── InvalidDestination
        ├── InvalidRecord       a record is damaged, or was changed after it was written
        │   ├── ForeignRecord   it is another job's, or was copied here from another place
        │   ├── SignatureRefused  it has no valid signature, or this process holds no key
        │   └── TooLarge        it is longer than any record of its kind, and was not read
        ├── NoSuchJob
        ├── JobMismatch         the job id is taken by a job with other parameters
        ├── JobClosed           the job no longer takes what was offered
        ├── AlreadyCommitted
        ├── NotReversible       the job has passed what a rollback could restore
        ├── DestinationNotEmpty conflict mode ``fail`` met data
        ├── DestinationChanged  someone else changed what the plan was made for
        ├── DuplicateOutput     two writers of one key, or one task twice
        ├── LockHeld            another job holds the lock that jobs with fixed names need
        ├── AuditFailed
        └── StoreUnsuitable     the store lacks something the protocol requires

Callers that clean up may do so on `DidNotHappen` and `Refused`, never on `OutcomeUnknown`.
"""

from __future__ import annotations

__all__ = [
    "AccessDenied",
    "AlreadyCommitted",
    "AuditFailed",
    "DestinationChanged",
    "DestinationNotEmpty",
    "DidNotHappen",
    "DuplicateOutput",
    "ForeignRecord",
    "InvalidDestination",
    "InvalidOption",
    "InvalidRecord",
    "JobClosed",
    "JobFailed",
    "JobMismatch",
    "LockHeld",
    "NoSuchBucket",
    "NoSuchJob",
    "NoSuchKey",
    "NoSuchUpload",
    "NotReversible",
    "OutcomeUnknown",
    "PreconditionFailed",
    "Refused",
    "S3CommitError",
    "SignatureRefused",
    "StoreRejected",
    "StoreUnsuitable",
    "TooLarge",
    "Unavailable",
]


class S3CommitError(Exception):
    """Root of every error of this package."""


class DidNotHappen(S3CommitError):
    """The call changed nothing."""


class OutcomeUnknown(S3CommitError):
    """The call may or may not have taken effect: its response was lost, or it was only partly undone.

    Nothing may be deleted or aborted because of it. Run the same step again, or ``recover`` the job.
    """


class Refused(S3CommitError):
    """A rule of the protocol, or a condition of the request, said no."""


class NoSuchKey(DidNotHappen):
    """The object is not there."""


class NoSuchBucket(DidNotHappen):
    """The bucket is not there."""


class NoSuchUpload(DidNotHappen):
    """The store does not know this multipart upload (any more).

    It may have been completed, aborted, expired by a lifecycle rule, or never created. Only a look at the
    object it was for can tell.
    """


class Unavailable(DidNotHappen):
    """The store turned the request away before doing anything (throttling, connection refused).

    Args:
        message: What was turned away.
        retry_after: Seconds the store asked to wait, if it did.

    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class AccessDenied(DidNotHappen):
    """The credentials are missing, expired, wrong, or not allowed to do this."""


class StoreRejected(DidNotHappen):
    """The store understood the request and rejected it (``code`` says why, in the store's words).

    Args:
        message: What was rejected.
        code: The store's error code, such as ``InvalidPart``.

    """

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class JobFailed(DidNotHappen):
    """The job could not be committed and its destination was left, or put back, as it was."""


class PreconditionFailed(Refused):
    """A conditional write or delete found the object other than it was asked to be."""


class InvalidOption(Refused, ValueError):
    """An option is unknown, malformed, or contradicts another."""


class InvalidDestination(Refused):
    """The destination is not one that data can be committed to."""


class InvalidRecord(Refused):
    """A record on the store is damaged, is not ours, or is not what was written."""


class TooLarge(InvalidRecord):
    """An object is longer than the caller reads: it was not read."""

    @classmethod
    def of(cls, uri: str, size: int, limit: int) -> TooLarge:
        """Return the error for an object of ``size`` bytes, of which ``limit`` would be read at most."""
        return cls(f"{uri} has {size} bytes; no more than {limit} are read of such an object")


class ForeignRecord(InvalidRecord):
    """A record is of another job, or was written for another place and copied here: nobody acts on it."""


class SignatureRefused(InvalidRecord):
    """A record has no signature by this process's key; or it has one, and this process holds no key."""


class NoSuchJob(Refused):
    """No job of this id is known at this destination."""


class JobMismatch(Refused):
    """A job of this id exists with other parameters."""


class JobClosed(Refused):
    """The job, stage or task attempt is in a state that does not take this step."""


class AlreadyCommitted(Refused):
    """The job is committed; it cannot be aborted or rolled back."""


class NotReversible(Refused):
    """Old data has been overwritten or deleted by this commit: it can only go forward."""


class DestinationNotEmpty(Refused):
    """Conflict mode ``fail``: the destination, or a partition the job writes, already has data.

    If another job committed first while this one was publishing, this one is rolled back.
    """


class DestinationChanged(Refused):
    """The destination is no longer what the plan was made for: plan again.

    After a roll-back, because other jobs kept committing to the same partitions, write the job again.
    """


class DuplicateOutput(Refused):
    """One task is claimed by two attempts, or one key is written by two files."""


class LockHeld(Refused):
    """Another live job with fixed file names, or that deletes first, is committing to this destination."""


class AuditFailed(Refused):
    """The pending output did not pass its checks."""


class StoreUnsuitable(Refused):
    """The store lacks something the protocol requires, or cannot be reached with these settings."""
