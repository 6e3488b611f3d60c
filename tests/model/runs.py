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


def _holds(name: str, model: str, switches: str) -> Run:
    return Run(name, model, tuple(switches.split()))


def _ends(name: str, model: str, switches: str) -> Run:
    return Run(name, model, tuple(switches.split()), liveness=True)


def _breaks(name: str, model: str, switches: str, *rules: str, errors: int = 1) -> Run:
    return Run(name, model, tuple(switches.split()), frozenset(rules), errors=errors)


HOLDS = (
    _holds("two-jobs", "log", "PARTS=2 LATE=1"),
    _holds("two-committers-lagging-log", "log", "PARTS=1 LATE=0 LAG=1 COMMIT_A=2"),
    _holds("abort-beside-commit", "log", "PARTS=1 LATE=1 ABORT_A=1 COMMIT_B=0"),
    _holds("abort-beside-two-jobs", "log", "PARTS=1 LATE=0 ABORT_A=1 STRANGERS"),
    _holds("success-marker", "log", "PARTS=1 LATE=1 MARKER"),
    _holds("success-marker-lagging-log", "log", "PARTS=1 LATE=0 LAG=1 MARKER"),
    _holds("deleted-marker", "log", "PARTS=1 LATE=0 DELETED_MARKER"),
    _holds("deleted-marker-beside-abort", "log", "PARTS=1 LATE=0 MORTAL=0 DELETED_MARKER ABORT_A=1"),
    _holds("plans-and-lists", "log", "PARTS=1 LATE=0 LISTS COMMIT_A=2"),
    _holds("late-plans", "log", "PARTS=1 LATE=1 LISTS"),
    _holds("three-jobs", "log", "PARTS=1 LATE=0 JOBS=3 MORTAL=0"),
    _holds("sweep-beside-rollback", "retain", "LATE=0 READERS=0"),
    _holds("late-release", "retain", "LATE=1 REPLACES=1 READERS=0"),
    _holds("reader", "retain", "LATE=0 SWEEPS=0 LAG=1"),
    _holds("reader-beside-sweep", "retain", "LATE=0 REPLACES=1 LAG=1"),
    _holds("partition-marker", "markers", "LATE=0 MORTAL=0"),
    _holds("setup-twice", "setup", "LATE=0"),
    _holds("late-setup", "setup", "LATE=1 SETUPS=1"),
    _holds("shards", "shards", "LATE=0"),
    _holds("late-shards", "shards", "LATE=1 TWINS=0 ABORTS=0"),
)

LIVENESS = (
    _ends("log-ends", "log", "PARTS=1 LATE=1"),
    _ends("retention-ends", "retain", "LATE=0 REPLACES=1"),
)

FAULTS = (
    _breaks(
        "no-conflict-check", "log", "PARTS=1 LATE=0 FAULT_NO_CONFLICT_CHECK", "replace_leaves_older_data"
    ),
    _breaks(
        "conflict-by-first-partition",
        "log",
        "PARTS=2 LATE=0 FAULT_CONFLICT_BY_FIRST_PARTITION",
        "replace_leaves_older_data",
    ),
    _breaks(
        "undo-before-abandon",
        "log",
        "PARTS=1 LATE=0 ABORT_A=1 FAULT_UNDO_BEFORE_ABANDON",
        "snapshot_file_missing",
    ),
    _breaks("plan-by-listing", "log", "PARTS=1 LATE=0 FAULT_PLAN_BY_LISTING", "snapshot_file_missing"),
    _breaks(
        "plans-overwritten", "log", "PARTS=1 LATE=0 LISTS COMMIT_A=2 FAULT_PLANS_OVERWRITTEN", "list_missing"
    ),
    _breaks("one-plan-id-a-process", "log", "PARTS=1 LATE=1 LISTS FAULT_ONE_PLAN_ID", "list_missing"),
    _breaks(
        "success-restored",
        "log",
        "PARTS=1 LATE=0 MARKER ABORT_A=1 FAULT_SUCCESS_RESTORED",
        "marker_not_newest",
    ),
    _breaks(
        "success-after-removal",
        "log",
        "PARTS=1 LATE=0 MARKER FAULT_MARKER_AFTER_REMOVAL",
        "marker_names_removed_data",
    ),
    _breaks(
        "success-trusts-listing",
        "log",
        "PARTS=1 LATE=0 LAG=1 MARKER FAULT_MARKER_TRUSTS_LISTING",
        "marker_goes_back",
    ),
    _breaks(
        "success-after-own-removals",
        "log",
        "PARTS=1 LATE=0 MARKER FAULT_MARKER_AFTER_OWN_REMOVALS",
        "marker_before_removal",
    ),
    _breaks(
        "marker-by-generation",
        "log",
        "PARTS=1 LATE=0 MORTAL=0 DELETED_MARKER ABORT_A=1 FAULT_MARKER_BY_GENERATION",
        "marker_not_newest",
    ),
    _breaks(
        "marker-not-renewed",
        "log",
        "PARTS=1 LATE=0 MORTAL=0 DELETED_MARKER ABORT_A=1 FAULT_MARKER_NOT_RENEWED",
        "marker_not_newest",
    ),
    _breaks(
        "marker-not-given-back",
        "log",
        "PARTS=1 LATE=0 MORTAL=0 DELETED_MARKER ABORT_A=1 FAULT_MARKER_NOT_GIVEN_BACK",
        "marker_not_newest",
    ),
    _breaks(
        "marker-only-if-none",
        "log",
        "PARTS=1 LATE=0 MORTAL=0 DELETED_MARKER JOBS=3 MODE_A=FAIL MODE_B=APPEND MODE_C=REPLACE"
        " FAULT_MARKER_ONLY_IF_NONE",
        "marker_not_newest",
    ),
    _breaks(
        "store-revives", "log", "PARTS=1 LATE=1 ABORT_A=1 FAULT_STORE_REVIVES", "objects_are_not_the_snapshot"
    ),
    _breaks("delete-unreleased", "retain", "LATE=0 REPLACES=1 FAULT_DELETE_UNRELEASED", "deleted_unreleased"),
    _breaks(
        "release-unchecked", "retain", "LATE=0 READERS=0 FAULT_RELEASE_UNCHECKED", "released_file_referenced"
    ),
    _breaks(
        "rollback-unchecked",
        "retain",
        "LATE=0 REPLACES=1 FAULT_ROLLBACK_UNCHECKED",
        "released_file_referenced",
    ),
    _breaks(
        "reader-trusts-listing",
        "retain",
        "LATE=0 SWEEPS=0 LAG=1 FAULT_READER_TRUSTS_LISTING",
        "reader_reports_damage",
    ),
    *(
        _breaks(fault, "markers", f"LATE=0 MORTAL=0 LAG=1 {switch}", "partition_marker_not_newest")
        for fault, switch in (
            ("marker-kept", "FAULT_MARKERS_KEPT"),
            ("any-marker-removed", "FAULT_MARKERS_ANY_REMOVED"),
            ("older-marker-over-newer", "FAULT_MARKERS_OLDER_OVER_NEWER"),
            ("marker-unlooked", "FAULT_MARKERS_UNLOOKED"),
            ("own-marker-left", "FAULT_MARKERS_OWN_LEFT"),
            ("marker-trusts-listing", "FAULT_MARKERS_TRUST_LISTING"),
        )
    ),
    _breaks("setup-looks-before", "setup", "LATE=0 FAULT_SETUP_LOOKS_BEFORE", "record_left"),
    _breaks("worker-looks-before", "setup", "LATE=0 FAULT_WORKER_LOOKS_BEFORE", "upload_left"),
    _breaks(
        "finish-needs-record", "setup", "LATE=0 FAULT_FINISH_NEEDS_RECORD", "record_of_living_job_removed"
    ),
    _breaks("finish-unchecked", "shards", "LATE=0 FAULT_FINISH_UNCHECKED", "snapshot_file_missing"),
    _breaks("notes-without-seal", "shards", "LATE=0 FAULT_NOTES_WITHOUT_SEAL", "snapshot_file_missing"),
)

LARGE = (
    _holds("large-four-processes", "log", "PARTS=1 LATE=0 ABORT_A=1 ABORT_B=1"),
    _holds("large-two-committers-each", "log", "PARTS=1 LATE=0 COMMIT_A=2 COMMIT_B=2"),
    _holds("large-two-late-writes", "log", "PARTS=2 LATE=2 LAG=1"),
    _holds("large-three-jobs", "log", "PARTS=1 LATE=0 JOBS=3"),
    _holds("large-success-marker", "log", "PARTS=2 LATE=1 LAG=1 MARKER"),
    _holds("large-deleted-marker", "log", "PARTS=1 LATE=1 DELETED_MARKER"),
    _holds("large-deleted-marker-beside-abort", "log", "PARTS=1 LATE=0 DELETED_MARKER ABORT_A=1"),
    _holds(
        "large-deleted-marker-three-jobs",
        "log",
        "PARTS=1 LATE=0 MORTAL=0 DELETED_MARKER JOBS=3 MODE_A=FAIL MODE_B=APPEND MODE_C=REPLACE",
    ),
    _holds("large-partition-marker", "markers", "LATE=0"),
    _holds("large-setup-twice", "setup", "LATE=1"),
    _holds("large-retention", "retain", "LATE=0"),
    _holds("large-shards", "shards", "LATE=1"),
)
