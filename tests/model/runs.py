"""The searches: which model with which switches, and what must come out.

A switch is a definition of the C preprocessor. ``LATE`` is how many writes may take effect late or twice,
``LAG`` how many listings of the log may lag, ``MORTAL=0`` a cast in which nobody dies.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAULTS", "HOLDS", "LARGE", "LIVENESS", "Run"]


@dataclass(frozen=True)
class Run:
    """One search.

    Attributes:
        name: How it is called in the documentation.
        model: The file in docs/model, without its suffix.
        switches: What is defined.
        breaks: The rules that must break; none for a search that must hold.
        liveness: Look for executions that never end, instead of states.
        errors: Stop at this error.
    """

    name: str
    model: str
    switches: tuple[str, ...]
    breaks: frozenset[str] = frozenset()
    liveness: bool = False
    errors: int = 1


#: Both jobs replace.
_REPLACES = "MODE_A=REPLACE MODE_B=REPLACE"

#: An id that is spent, beside another job.
_SPENT = "JOBS=2 LATE=0 MORTAL=0 MODE=0 OPEN_A=1 UNSEALED ABORT_A=1 ABORT_B=1"

#: A commit and an abort of one job, beside what its tasks and sealers do.
_TASKS = "JOBS=1 LATE=0 MORTAL=0 MODE=0 COMMIT_A=1 ABORT_A=1"

#: A sweep beside the setup of a job.
_SWEEP = "JOBS=1 LATE=0 SETUP_A=1 TASKS=1 SWEEP_A=1 MORTAL=0 MODE=0"

#: An append, a replace and a rollback, read from one generation to the next.
_FOLLOWED = "JOBS=2 MODE_A=APPEND MODE_B=REPLACE LATE=0 MORTAL=0 ROLLBACKS=1 FOLLOWERS=1"

#: Three tries of a run.
_RUN = "JOBS=3 LATE=0 RUN SETUP_A=1 SETUP_B=1 SETUP_C=1 MORTAL=0 MODE=0"


#: A job made from the first generation is set up beside the commit of another one.
_SEEN = "JOBS=2 LATE=0 OPEN_B=1 SETUP_A=1 TASKS=1 SEAL_1=1 COMMIT_A=1 COMMIT_B=1 MODE=1 SEEN=1 MORTAL=0"


def _holds(name: str, model: str, switches: str) -> Run:
    return Run(name, model, tuple(switches.split()))


def _ends(name: str, model: str, switches: str) -> Run:
    return Run(name, model, tuple(switches.split()), liveness=True)


def _breaks(name: str, model: str, switches: str, *rules: str, errors: int = 1) -> Run:
    return Run(name, model, tuple(switches.split()), frozenset(rules), errors=errors)


HOLDS = (
    _holds("two-jobs", "race", "LATE=1 STRANGERS"),
    _holds("two-partitions", "race", "PARTS=2 LATE=0"),
    _holds("two-committers-of-a-job", "race", "LATE=0 COMMIT_A=2 MORTAL=0"),
    _holds("abort-beside-commit", "race", "JOBS=1 LATE=2 ABORT_A=1 FILES_A=3"),
    _holds("abort-beside-two-jobs", "race", "LATE=0 ABORT_A=1 MORTAL=0"),
    _holds("expired-upload", "race", "LATE=0 EXPIRY MORTAL=0"),
    _holds("three-jobs", "race", "LATE=0 JOBS=3 MORTAL=0"),
    _holds("versions", "race", "LATE=0 VERSIONS"),
    _holds("setup-to-commit", "jobs", "JOBS=1 LATE=0 SETUP_A=1 TASKS=1 SEAL_1=1 COMMIT_A=1 MODE=1"),
    _holds("setup-beside-abort", "jobs", "JOBS=2 LATE=0 SETUP_A=2 ABORT_A=1 ABORT_B=1 MODE=0 LAG=1"),
    _holds("late-tasks", "jobs", "JOBS=1 LATE=0 OPEN_A=1 TASKS=6 COMMIT_A=1 ABORT_A=1 MORTAL=0 MODE=0"),
    _holds(
        "two-sealers", "jobs", "JOBS=1 LATE=0 UNSEALED TASKS=5 SEAL_1=1 SEAL_2=4 COMMIT_A=1 MORTAL=0 MODE=0"
    ),
    _holds("shards", "jobs", "JOBS=1 LATE=0 OPEN_A=3 SHARDS=3 COMMIT_A=1 ABORT_A=1 MODE=0"),
    _holds("sweep-beside-commit", "jobs", "JOBS=1 LATE=1 OPEN_A=1 TASKS=4 COMMIT_A=1 SWEEP_A=1 MODE=1"),
    _holds("sweep-beside-setup", "jobs", "JOBS=1 LATE=0 SETUP_A=1 TASKS=1 SWEEP_A=1 COMMIT_A=1 MODE=0"),
    _holds("tries-of-a-run", "jobs", "JOBS=3 LATE=0 RUN SETUP_A=1 SETUP_B=1 MORTAL=0 MODE=0"),
    _holds("seen-before-base", "jobs", _SEEN),
    _holds(
        "older-data", "jobs", "JOBS=2 LATE=0 FRESH SETUP_A=1 TASKS=1 SEAL_1=1 COMMIT_A=1 ABORT_B=1 MORTAL=0"
    ),
    _holds("copied-data", "jobs", "JOBS=1 LATE=1 FRESH COPIES=16 ABORT_A=1 SWEEP_A=1 SETUP_A=1 MODE=0"),
    _holds("releases", "history", f"JOBS=2 {_REPLACES} LATE=0 MORTAL=0 RELEASES=2"),
    _holds("late-release", "history", "JOBS=1 MODE_A=REPLACE LATE=1 ROLLBACKS=1 RELEASES=1 STRANGERS"),
    _holds("rollback-beside-commits", "history", f"JOBS=2 {_REPLACES} LATE=0 ROLLBACKS=1"),
    _holds("rollback-beside-sweep", "history", "JOBS=1 MODE_A=REPLACE LATE=0 ROLLBACKS=1 RELEASES=1 SWEEP=1"),
    _holds("removed-at-once", "history", f"JOBS=2 {_REPLACES} LATE=0 ROLLBACKS=1 RETAIN=0"),
    _holds("readers", "history", f"JOBS=2 {_REPLACES} LATE=0 MORTAL=0 RELEASES=1 READERS=1 LAG=1"),
    _holds("followers", "history", _FOLLOWED),
    _holds("partition-markers", "markers", "LATE=0 MORTAL=0"),
)

LIVENESS = (
    _ends("race-ends", "race", "LATE=1"),
    _ends("history-ends", "history", "JOBS=1 MODE_A=REPLACE LATE=0 ROLLBACKS=1 RELEASES=1"),
)

FAULTS = (
    _breaks(
        "undo-before-abandon",
        "race",
        "JOBS=1 LATE=0 ABORT_A=1 FAULT_UNDO_BEFORE_ABANDON",
        "living_upload_aborted",
    ),
    _breaks(
        "objects-before-uploads",
        "race",
        "JOBS=1 LATE=1 ABORT_A=1 FAULT_OBJECTS_BEFORE_UPLOADS",
        "objects_are_not_the_table",
    ),
    _breaks("taken-once", "race", "LATE=0 FAULT_TAKEN_ONCE", "replace_leaves_older_data"),
    _breaks(
        "taken-in-first-partition",
        "race",
        "PARTS=2 LATE=0 FAULT_TAKES_FIRST_PARTITION",
        "replace_leaves_older_data",
    ),
    _breaks("taken-by-listing", "race", "LATE=0 FAULT_TAKES_BY_LISTING", "released_file_referenced"),
    _breaks("fail-judged-once", "race", "LATE=0 FAULT_FAIL_JUDGED_ONCE", "fail_beside_data"),
    _breaks("deleted-before-entry", "race", "LATE=0 FAULT_DELETE_BEFORE_ENTRY", "deleted_unreleased"),
    _breaks("marker-over-newer", "race", "LATE=0 FAULT_MARKER_OVER_NEWER", "marker_goes_back"),
    _breaks("marker-deleted", "race", "LATE=0 JOBS=3 MORTAL=0 FAULT_MARKER_DELETED", "marker_goes_back"),
    _breaks(
        "version-after-deletions",
        "race",
        "LATE=0 VERSIONS FAULT_VERSION_AFTER_DELETIONS",
        "version_names_missing_file",
    ),
    _breaks("next-without-version", "race", "LATE=0 VERSIONS FAULT_NEXT_WITHOUT_VERSION", "version_missing"),
    _breaks(
        "store-revives", "race", "JOBS=1 LATE=1 ABORT_A=1 FAULT_STORE_REVIVES", "objects_are_not_the_table"
    ),
    _breaks(
        "setup-looks-once",
        "jobs",
        f"{_SPENT} SETUP_A=1 SEAL_1=1 COMMIT_A=1 FAULT_SETUP_LOOKS_ONCE",
        "job_ended_twice",
    ),
    _breaks(
        "setup-does-not-look",
        "jobs",
        "JOBS=1 LATE=0 SETUP_A=1 ABORT_A=1 MORTAL=0 MODE=0 FAULT_SETUP_DOES_NOT_LOOK",
        "record_left",
    ),
    _breaks(
        "task-does-not-look", "jobs", f"{_TASKS} UNSEALED TASKS=4 FAULT_TASK_DOES_NOT_LOOK", "upload_left"
    ),
    _breaks(
        "sealer-does-not-look",
        "jobs",
        f"{_TASKS} SEAL_1=1 UNSEALED TASKS=1 FAULT_SEALER_DOES_NOT_LOOK",
        "record_left",
    ),
    _breaks(
        "sealer-deletes-its-seal",
        "jobs",
        f"{_TASKS} SEAL_1=1 UNSEALED TASKS=1 FAULT_SEALER_DELETES_ITS_SEAL",
        "objects_are_not_the_table",
    ),
    _breaks(
        "flag-is-the-record", "jobs", f"{_TASKS} SETUP_A=1 TASKS=4 FAULT_FLAG_IS_THE_RECORD", "upload_left"
    ),
    _breaks(
        "next-without-receipt",
        "jobs",
        f"{_SPENT} SETUP_A=1 SEAL_1=1 COMMIT_A=1 FAULT_NEXT_WITHOUT_RECEIPT",
        "job_ended_twice",
    ),
    _breaks(
        "receipt-before-head",
        "jobs",
        f"{_SPENT} SETUP_A=1 SEAL_1=1 COMMIT_A=1 FAULT_RECEIPT_BEFORE_HEAD",
        "job_ended_twice",
    ),
    _breaks(
        "shard-without-seal",
        "jobs",
        "JOBS=1 LATE=0 OPEN_A=1 TASKS=4 SHARDS=4 COMMIT_A=1 MORTAL=0 MODE=0 FAULT_SHARD_WITHOUT_SEAL",
        "objects_are_not_the_table",
    ),
    _breaks(
        "sweep-lists-records-first",
        "jobs",
        f"{_SWEEP} FAULT_SWEEP_LISTS_RECORDS_FIRST",
        "living_job_ended_by_sweep",
    ),
    _breaks(
        "sweep-without-entry",
        "jobs",
        f"{_SWEEP} FAULT_SWEEP_LISTS_RECORDS_FIRST FAULT_SWEEP_WITHOUT_ENTRY",
        "living_upload_aborted",
    ),
    _breaks("base-counts-as-seen", "jobs", f"{_SEEN} FAULT_BASE_COUNTS_AS_SEEN", "change_unseen"),
    _breaks("setups-end-each-other", "jobs", f"{_RUN} FAULT_SETUPS_END_EACH_OTHER", "no_open_job_of_a_run"),
    _breaks(
        "tries-listed-first",
        "jobs",
        f"{_RUN} FAULT_TRIES_LISTED_BEFORE_OWN_RECORD",
        "two_open_jobs_of_one_run",
    ),
    _breaks(
        "undo-by-name",
        "jobs",
        "JOBS=1 LATE=0 FRESH COPIES=16 UNSEALED SEAL_1=1 TASKS=1 ABORT_A=1 MORTAL=0 MODE=0"
        " FAULT_UNDO_BY_NAME",
        "table_file_missing",
    ),
    _breaks(
        "deletes-retained",
        "history",
        "JOBS=1 MODE_A=REPLACE LATE=0 RELEASES=1 FAULT_DELETES_RETAINED",
        "deleted_unreleased",
    ),
    _breaks(
        "freed-is-forgotten",
        "history",
        f"JOBS=2 {_REPLACES} LATE=0 MORTAL=0 RELEASES=2 FAULT_FREED_IS_FORGOTTEN",
        "objects_are_not_the_table",
    ),
    _breaks(
        "release-deletes-what-was-due",
        "history",
        "JOBS=1 MODE_A=REPLACE LATE=0 MORTAL=0 ROLLBACKS=1 RELEASES=1 FAULT_RELEASE_DELETES_WHAT_WAS_DUE",
        "deleted_unreleased",
    ),
    _breaks(
        "retained-is-unowned",
        "history",
        f"JOBS=2 {_REPLACES} LATE=0 MORTAL=0 ROLLBACKS=1 RETAIN=1 FAULT_RETAINED_IS_UNOWNED",
        "released_file_referenced",
    ),
    _breaks(
        "rollback-looks-at-objects",
        "history",
        "JOBS=1 MODE_A=REPLACE LATE=0 MORTAL=0 ROLLBACKS=1 RELEASES=1 FAULT_ROLLBACK_LOOKS_AT_OBJECTS",
        "released_file_referenced",
    ),
    _breaks(
        "rollback-ignores-commit",
        "history",
        f"JOBS=2 {_REPLACES} LATE=0 MORTAL=0 ROLLBACKS=1 FAULT_ROLLBACK_IGNORES_COMMIT",
        "commit_taken_back",
    ),
    _breaks(
        "reader-believes-listing",
        "history",
        "JOBS=1 MODE_A=REPLACE LATE=0 MORTAL=0 RELEASES=1 READERS=1 LAG=2 FAULT_READER_BELIEVES_LISTING",
        "reader_reports_damage",
    ),
    _breaks(
        "follower-passes-rollback",
        "history",
        f"{_FOLLOWED} FAULT_FOLLOWER_PASSES_ROLLBACK",
        "follower_misses_file",
    ),
    _breaks(
        "own-entry-decides", "markers", "LATE=0 MORTAL=0 FAULT_OWN_ENTRY_DECIDES", "partition_marker_wrong"
    ),
    _breaks("marker-unlooked", "markers", "LATE=0 MORTAL=0 FAULT_DOES_NOT_LOOK", "partition_marker_wrong"),
    *(
        _breaks(name, "markers", f"LATE=0 MORTAL=0 {switch}", "partition_marker_not_newest")
        for name, switch in (
            ("older-marker-over-newer", "FAULT_OLDER_OVER_NEWER"),
            ("marker-deleted-without-etag", "FAULT_DELETES_ANY"),
            ("later-marker-deleted", "FAULT_DELETES_LATER_ONE"),
        )
    ),
)

LARGE = (_holds("large-two-partitions", "race", "PARTS=2 LATE=1"),)
