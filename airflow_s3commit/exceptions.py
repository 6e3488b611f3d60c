"""All errors of this package, in one tree whose first level is the outcome.

`DidNotHappen`: the call did not take effect. `OutcomeUnknown`: it may have. `Refused`: a rule forbids
it. Callers that clean up may do so on `DidNotHappen` and `Refused`, never on `OutcomeUnknown`.
"""

from __future__ import annotations


class S3CommitError(Exception):
    """Root of every error of this package."""


class DidNotHappen(S3CommitError):
    """The call did not take effect. If a commit had already made files visible, a note says so."""


class OutcomeUnknown(S3CommitError):
    """The call may or may not have taken effect: its response was lost, or it was only partly undone.

    Nothing may be deleted or aborted because of it. Run the same step again, or ``recover`` the job.
    """


class Refused(S3CommitError):
    """A rule of the protocol, or a condition of the request, forbids the call."""


class NoSuchKey(DidNotHappen):
    """The object does not exist."""


class NoSuchBucket(DidNotHappen):
    """The bucket does not exist."""


class NoSuchUpload(DidNotHappen):
    """The multipart upload does not exist, or no longer exists.

    It was completed, aborted, removed by a lifecycle rule or never created. Only a HEAD of its object tells.
    """


class Unavailable(DidNotHappen):
    """The store rejected the request without acting on it: throttling, or a refused connection.

    Args:
        message: The request and the reason.
        retry_after: Seconds to wait before a retry, if the store names them.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class AccessDenied(DidNotHappen):
    """The credentials are missing, expired or wrong, or lack a permission."""


class StoreRejected(DidNotHappen):
    """The store understood the request and rejected it; ``code`` is the reason.

    Args:
        message: The request and the store's message.
        code: The store's error code, such as ``InvalidPart``.
    """

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


#: What one attempt raises that says nothing of an attempt before it: credentials expire in between, and a
#: gateway that has lost an answer may refuse the next request.
REFUSALS = (AccessDenied, NoSuchBucket, StoreRejected, Unavailable)


class JobFailed(DidNotHappen):
    """The job could not be committed; its destination is unchanged."""


class PreconditionFailed(Refused):
    """The condition of a write or delete does not hold: another process changed the object."""


class InvalidOption(Refused, ValueError):
    """An option is unknown, malformed, or contradicts another."""


class InvalidDestination(Refused):
    """The URI cannot be a destination: no directory on S3, not the job's, or with another table's files."""


class InvalidRecord(Refused):
    """A record is damaged, belongs to another job, was changed after it was written, or exceeds a limit."""


class InvalidPath(InvalidRecord):
    """No data file can have this path: S3 cannot keep or list it, or readers would skip it. Rename it."""


class TooLarge(InvalidRecord):
    """An object is larger than any record of its kind, and was not read."""

    @classmethod
    def of(cls, uri: str, size: int, limit: int) -> TooLarge:
        """Return the error for an object of ``size`` bytes, when at most ``limit`` are read."""
        return cls(f"{uri} has {size} bytes; no more than {limit} are read of such an object")


class ForeignRecord(InvalidRecord):
    """A record belongs to another job, or was copied here from another place. No step acts on it."""


class NoSuchJob(Refused):
    """The destination has no job with this id."""


class JobMismatch(Refused):
    """A job with this id exists with other options."""


class JobClosed(Refused):
    """The state of the job, stage or task attempt does not allow this step."""


class AlreadyCommitted(Refused):
    """The job is committed; it cannot be aborted or rolled back."""


class NotReversible(Refused):
    """Files of the generation are gone, changed or released: the table cannot be rolled back to it."""


class HistoryRewound(Refused):
    """The table was rolled back, or its log started over, since a reader's generation: read it all again."""


class DestinationNotEmpty(Refused):
    """Conflict mode ``fail``: the destination, or a partition the job writes, has data.

    If another job committed first while this one was publishing, this one is aborted.
    """


class DestinationChanged(Refused):
    """The partitions changed after the commit was previewed, or a file after it was committed."""


class DuplicateOutput(Refused):
    """Two attempts of one task or stage are sealed, or two files have one key."""


class AuditFailed(Refused):
    """The pending output failed a check of the audit. None of it is visible."""


class StoreUnsuitable(Refused):
    """The store lacks something that the protocol needs, or its endpoint is invalid."""
