"""Properties of every destination, path and job id, found with generated values."""

from __future__ import annotations

import re
from contextlib import suppress

from hypothesis import assume, example, given
from hypothesis import strategies as st

from airflow_s3commit.exceptions import InvalidDestination, InvalidRecord
from airflow_s3commit.protocol.model.destination import (
    MAX_KEY_BYTES,
    Destination,
    check_relative_path,
    is_hidden,
    join_uri,
    split_uri,
)
from airflow_s3commit.protocol.model.layout import Layout, owner_of, partition_of, unique_name

#: Characters that have a meaning in a path, a URI, a pattern or an id, and some that have none.
_ODD = st.sampled_from("/._-=%?#*+()[]$^\\ \n\x00\x85\u2028\ud800aZ09ü🛫")
_ANY_TEXT = st.text(_ODD, max_size=24) | st.text(max_size=24)

_ELEMENT = st.text(st.sampled_from("abcXYZ019-_.=%+ ü"), min_size=1, max_size=12).filter(
    lambda element: not is_hidden(element)
)
_PATHS = st.lists(_ELEMENT, min_size=1, max_size=4).map("/".join)
_PREFIXES = st.lists(_ELEMENT, max_size=3).map("/".join)
_JOB_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True) | st.uuids().map(str)
_STEP_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,6}", fullmatch=True)
_ATTEMPTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.]{0,3}", fullmatch=True)


@given(_ANY_TEXT)
@example("s3://lake/\ud800")
def test_a_destination_is_understood_or_refused(text: str) -> None:
    """Any text is either parsed to a destination that can be written back, or refused with its own error."""
    for uri in (text, f"s3://lake/{text}", f"s3a://{text}"):
        with suppress(InvalidDestination):
            parsed = Destination.parse(uri)
            assert parsed.prefix == "" or parsed.prefix.endswith("/")
            assert not parsed.prefix.startswith("/")
            assert Destination.parse(parsed.uri) == parsed
            assert Destination.parse(parsed.uri.rstrip("/")) == parsed
            assert len(parsed.prefix.encode()) <= MAX_KEY_BYTES


@given(_PREFIXES, _ANY_TEXT, _ANY_TEXT)
@example("out/dataset1", "lake", "out/dataset10/a")
@example("out/dataset1", "lake", "out/dataset1/../x")
def test_an_accepted_key_lies_inside(prefix: str, bucket: str, key: str) -> None:
    """An accepted data key is in the destination's bucket, below its prefix, and visible."""
    here = Destination.parse(f"s3://lake/{prefix}")
    for candidate in (key, here.prefix + key):
        with suppress(InvalidRecord):
            relative = here.check_data_key(bucket, candidate)
            assert bucket == here.bucket
            assert candidate == here.prefix + relative == here.key(relative)
            assert not is_hidden(relative)
            assert {"", ".", ".."}.isdisjoint(relative.split("/"))
            assert relative.isprintable() or not re.search(r"[\x00-\x1f\x7f]", relative)


@given(_PREFIXES, _PATHS)
def test_paths_and_keys_are_inverse(prefix: str, path: str) -> None:
    """A path's key maps back to the path, and the key of a neighbour with the same beginning does not."""
    here = Destination.parse(f"s3://lake/{prefix}")
    check_relative_path(path)
    assert here.relative(here.key(path)) == path
    assert here.check_data_key("lake", here.key(path)) == path
    assert split_uri(join_uri("lake", here.key(path))) == ("lake", here.key(path))
    if here.prefix:
        neighbour = f"{here.prefix[:-1]}0/{path}"
        assert here.relative(neighbour) is None


@given(_PREFIXES)
def test_neither_of_two_neighbours_is_in_the_other(prefix: str) -> None:
    """Of two destinations one contains keys of the other only if it is a directory above it."""
    assume(prefix)
    here = Destination.parse(f"s3://lake/{prefix}")
    there = Destination.parse(f"s3://lake/{prefix}0")
    assert here.relative(there.key("a")) is None
    assert there.relative(here.key("a")) is None
    assert here.relative(here.below("x").key("a")) == "x/a"


_IDS = st.uuids().map(str)


@given(_PATHS, _IDS, _IDS)
def test_a_unique_name_is_its_job_s_alone(path: str, job_id: str, other: str) -> None:
    """A name made unique, even of a path full of ids, is that job's, keeps its directory and is made once."""
    assume(job_id != other)
    directory, slash, name = path.rpartition("/")
    for offered in (path, f"{directory}{slash}{name}-{other}.{job_id}", f"x-{job_id}/x-{other}-c1.{name}"):
        unique = unique_name(offered, job_id)
        assert owner_of(unique) == job_id
        assert partition_of(unique) == partition_of(offered)
        assert unique_name(unique, job_id) == unique
        stem, dot, ending = offered.rpartition("/")[2].partition(".")
        assert unique == offered or unique.rpartition("/")[2] == f"{stem}-{job_id}{dot}{ending}"


@given(_PATHS, _JOB_IDS)
@example("part-11.parquet", "1")
@example("dt=2013-01-01/part-0.parquet", "2013")
def test_a_name_of_a_job_with_any_id_is_made_unique_once(path: str, job_id: str) -> None:
    """A job of Hadoop, with any id, gets its own names once."""
    unique = unique_name(path, job_id)
    assert partition_of(unique) == partition_of(path)
    assert unique_name(unique, job_id) == unique


@given(
    st.tuples(_STEP_IDS, _ATTEMPTS, _STEP_IDS, _ATTEMPTS),
    st.tuples(_STEP_IDS, _ATTEMPTS, _STEP_IDS, _ATTEMPTS),
)
@example(("a-1", "2", "t", "1"), ("a", "1", "2", "1"))
@example(("a", "1", "t_1", "2"), ("a", "1", "t", "1"))
def test_every_attempt_has_its_own_keys(
    one: tuple[str, str, str, str], other: tuple[str, str, str, str]
) -> None:
    """Two task attempts share a pendingset only if they are the same attempt."""
    layout = Layout.of(Destination("lake", "flights/"), "j")
    assert (layout.pendingset(*one) == layout.pendingset(*other)) is (one == other)
    same_stage = one[:2] == other[:2]
    assert (layout.stage_seal(*one[:2]) == layout.stage_seal(*other[:2])) is same_stage
    assert layout.pendingset(*one).startswith(layout.stage(*other[:2])) is same_stage
