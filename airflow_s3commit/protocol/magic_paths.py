"""Paths in a magic directory, and where the files written there end up.

Hadoop's magic committer gives every task attempt a directory to write to,
``<destination>/__magic_job-<job>/job-<job>/NN/tasks/<attempt>/__base/``, and turns each file created below
it into a pending upload of its final path. The rules are Hadoop's (``MagicCommitPaths``):

- The first element that begins with ``__magic_job-`` parts the path into parents and children.
- If ``__base`` is among the children, the final path is the parents and what follows the first ``__base``.
- Otherwise it is the parents and the last child: the directories between are left out.

Everything here is text: nothing is asked of a store.
"""

from __future__ import annotations

from airflow_s3commit.exceptions import InvalidRecord
from airflow_s3commit.protocol.destination import check_relative_path
from airflow_s3commit.protocol.layout import MAGIC_PREFIX, check_id

__all__ = ["BASE", "final_path", "is_magic_path", "magic_path"]

#: The directory of a magic directory below which relative paths are kept.
BASE = "__base"

_MAX_APPLICATION_ATTEMPT = 999_999


def is_magic_path(path: str) -> bool:
    """Tell whether an element of the path begins a magic directory."""
    return any(element.startswith(MAGIC_PREFIX) for element in path.split("/"))


def final_path(path: str) -> str:
    """Return where a file written at this path ends up; a path outside magic directories is its own end.

    Keys, absolute paths, URIs and paths relative to a destination are all taken: what comes before the magic
    directory is kept as it is.

    Raises:
        InvalidRecord: No file can be there: nothing follows the magic directory or its ``__base``, or an
            element is empty, ``.`` or ``..``.

    """
    elements = path.split("/")
    magic = next((n for n, element in enumerate(elements) if element.startswith(MAGIC_PREFIX)), None)
    if magic is None:
        return path
    parents, children = elements[:magic], elements[magic + 1 :]
    if not any(children):
        raise InvalidRecord(f"path {path!r} names a magic directory, and no file in it")
    for element in children:
        if element in ("", ".", ".."):
            raise InvalidRecord(f"path {path!r} has an element {element!r} below its magic directory")
    if BASE not in children:
        return "/".join([*parents, children[-1]])
    below = children[children.index(BASE) + 1 :]
    if not below:
        raise InvalidRecord(f"path {path!r} names a {BASE} directory, and no file below it")
    return "/".join([*parents, *below])


def magic_path(job_id: str, task_attempt: str, relative_path: str, *, application_attempt: int = 0) -> str:
    """Return the path, below the destination, at which a task attempt writes a file: `final_path` reversed.

    Args:
        job_id: The job.
        task_attempt: Hadoop's id of the task attempt, or any other made of letters, digits and ``._-``.
        relative_path: The file's final path below the destination.
        application_attempt: Which run of the application, counted from 0; Spark has only that one.

    Raises:
        InvalidRecord: An id or the path is not one that could be committed.

    """
    check_id(job_id)
    check_id(task_attempt, "task attempt")
    check_relative_path(relative_path)
    if not 0 <= application_attempt <= _MAX_APPLICATION_ATTEMPT:
        raise InvalidRecord(f"application attempt {application_attempt} is not a count from 0")
    attempt = f"{MAGIC_PREFIX}{job_id}/job-{job_id}/{application_attempt:02d}/tasks/{task_attempt}"
    return f"{attempt}/{BASE}/{relative_path}"
