"""What a destination holds, by its log alone: an oracle that shares no code with the protocol.

It reads the entries in order and applies each as the documentation words it: ``append`` adds its files,
``replace`` takes away all that came before it in its partitions, ``fail`` found nothing there; what a commit
with a retention takes away stays in place until a release, unless a rollback brings it back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

__all__ = ["Files", "History", "is_data", "partition"]

#: ETags by key.
Files: TypeAlias = dict[str, str]


def is_data(path: str) -> bool:
    """Return whether a reader that lists takes this path for data."""
    return not any(name.startswith(("_", ".")) for name in path.split("/"))


def partition(key: str) -> str:
    """Return the directory of a key."""
    return key.rpartition("/")[0]


class History:
    """The generations of a destination.

    Args:
        read: Returns the body of an object of the destination's bucket.

    Attributes:
        head: Number of the newest entry.
        ends: Number of each ended job's entry.
        ended: Kind of each ended job's entry.
        bodies: The bytes of each entry, by number.
        files: The table after each commit, by generation; 0 is before all of them.
        added: The files of each commit, by generation.
        by_job: The same by job.
        taken: What each commit took, objects of other programs included.
        brought_back: The files that each rollback brought back, by its generation.
        retained: The commit that took away each file that is to stay in place.
        released: The files that must not come back.
        lists: The keys of the lists of files that entries name, without those that lie within them.
    """

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self.head = 0
        self.ends: dict[str, int] = {}
        self.ended: dict[str, str] = {}
        self.bodies: dict[int, bytes] = {}
        self.files: dict[int, Files] = {0: {}}
        self.added: dict[int, Files] = {}
        self.by_job: dict[str, Files] = {}
        self.taken: dict[int, set[str]] = {}
        self.brought_back: dict[int, set[str]] = {}
        self.retained: dict[str, int] = {}
        self.released: set[str] = set()
        self.lists: set[str] = set()
        self._retained_at: dict[int, dict[str, int]] = {}
        self._read = read

    def fold(self, keys: Iterable[str]) -> History:
        """Take the entries with these keys, in their order, and return itself."""
        for key in sorted(keys):
            self.take(self._read(key))
        return self

    @property
    def newest(self) -> int:
        """Return the newest generation."""
        return max(self.files)

    @property
    def data(self) -> Files:
        """The table at the newest generation."""
        return self.files[self.newest]

    def take(self, body: bytes) -> None:
        """Apply the next entry."""
        entry = json.loads(body)
        before = self.bodies.get(self.head)
        self.head += 1
        self.bodies[self.head] = body
        assert entry["number"] == self.head, "entries are consecutive"
        follows = hashlib.sha256(before).hexdigest() if before is not None else ""
        assert entry.get("prev", "") == follows, "the entry follows another one"
        job = entry.get("job_id")
        assert job not in self.ends, f"job {job} ended twice"
        if job is not None:
            self.ends[job], self.ended[job] = self.head, entry["kind"]
        self._release(entry.get("frees", []))
        if entry["kind"] == "commit":
            home = entry["destination"].removeprefix("s3://").partition("/")[2]
            self._commit(entry["commit"], home, job)
        self._retained_at[self.head] = dict(self.retained)

    def _release(self, generations: list[int]) -> None:
        freed = {key for key, by in self.retained.items() if by in generations}
        self.released |= freed
        self.retained = {key: by for key, by in self.retained.items() if key not in freed}

    def _commit(self, commit: dict[str, Any], home: str, job: str | None) -> None:
        listed = self._listed(commit, home, job)
        named = {f"{home}{name}".rstrip("/") for name in commit["partitions"]}
        older = {
            key: etag
            for key, etag in self.data.items()
            if commit.get("takes") == "everything" or partition(key) in named
        }
        mode, back = commit["mode"], self._brought_back(commit, home)
        kept = {key: etag for key, etag in self.data.items() if mode == "append" or key not in older}
        if mode == "rollback":
            names = {f"{home}{name}".rstrip("/") for name in commit["restores"]}
            kept = {key: etag for key, etag in self.data.items() if partition(key) not in names} | back
        assert mode != "fail" or not older, f"job {job} in mode fail is beside data"
        assert (commit.get("takes", "nothing") == "nothing") == (mode != "replace"), "it takes by its mode"
        gone = self.data.keys() - kept.keys()
        others = {one["key"] for one in commit.get("unowned", [])}
        assert not others & self.data.keys(), "a file of the table is another program's"
        assert commit.get("replaced", {}).get("files", 0) == len(gone) + len(others), "it replaces others"
        self.taken[self.head] = gone | others
        self.brought_back[self.head] = back.keys() - self.data.keys()
        self.files[self.head], self.added[self.head] = kept | listed, listed
        if job is not None:
            self.by_job[job] = listed
        # Another program may have written over an object that is retained: this commit took the new one.
        self.retained = {key: by for key, by in self.retained.items() if key not in others}
        if commit.get("retain"):
            self.retained |= dict.fromkeys(gone | others, self.head)
        goal = self.files.get(commit.get("rolled_back_to", 0), {})
        assert mode != "rollback" or self.data == goal, "the rollback is to another generation"

    def _brought_back(self, commit: dict[str, Any], home: str) -> Files:
        back = {
            key: etag
            for name, numbers in commit.get("restores", {}).items()
            for number in numbers
            for key, etag in self.added[number].items()
            if partition(key) == f"{home}{name}".rstrip("/")
        }
        assert not back.keys() & self.released, "released_file_referenced"
        self.retained = {key: by for key, by in self.retained.items() if key not in back}
        return back

    def _listed(self, commit: dict[str, Any], home: str, job: str | None) -> Files:
        digest, within = commit["files_sha256"], commit.get("within")
        if within is None:
            key = f"{home}_s3commit/lists/{job or 'older-data'}-{digest}.jsonl"
            self.lists.add(key)
            listed = self._read(key)
        else:
            texts = (json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n" for line in within)
            listed = "".join(texts).encode()
        assert hashlib.sha256(listed).hexdigest() == digest, "the entry's list is another"
        lines = [json.loads(line) for line in listed.splitlines()]
        counted = {name: its["files"] for name, its in commit["partitions"].items() if its["files"]}
        found = [line["partition"] for line in lines]
        assert counted == {name: found.count(name) for name in found}, "the entry counts other files"
        assert all(f"{home}{line['partition']}".rstrip("/") == partition(line["key"]) for line in lines)
        return {line["key"]: line["etag"] for line in lines}

    def check_checkpoint(self, body: bytes, root: str) -> None:
        """Check that a checkpoint is the fold of the entries up to its own.

        Args:
            body: Its text, decompressed.
            root: The destination's prefix.
        """
        head, *lines = map(json.loads, body.splitlines())
        number = head["head"]["number"]
        assert head["head"]["sha256"] == hashlib.sha256(self.bodies[number]).hexdigest(), "another log's"
        parts = lines[head["sources"] : head["sources"] + head["partitions"]]
        others = lines[head["sources"] + head["partitions"] :]
        taken_of_others = {one["key"] for one in others}

        def keys(of: Callable[[dict[str, Any]], Iterable[int]]) -> set[str]:
            return {
                key
                for part in parts
                for generation in of(part)
                for key in self.added[generation]
                if partition(key) == f"{root}{part['name']}".rstrip("/")
            }

        live = self.files[max(generation for generation in self.files if generation <= number)]
        assert keys(lambda part: part.get("live", [])) == live.keys(), "checkpoint_is_not_the_fold"
        for generation in self.files:
            name, kept = str(generation), self._retained_at[number] if number else {}
            theirs = keys(lambda part, name=name: part.get("left", {}).get(name, []))  # type: ignore[misc]
            theirs |= {one["key"] for one in others if one["generation"] == generation}
            theirs = theirs if name in head["retained"] else set()
            retained = {key for key, by in kept.items() if by == generation}
            # An object that was written over while it was retained was taken twice.
            assert retained <= theirs <= retained | taken_of_others, "checkpoint_is_not_the_fold"
