"""A destination is one directory, and no record can name anything outside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_s3commit.exceptions import InvalidDestination, InvalidRecord
from airflow_s3commit.protocol.model.destination import (
    MAX_KEY_BYTES,
    Destination,
    check_relative_path,
    hadoop_uri,
    is_data,
    is_hidden,
    join_uri,
    split_uri,
)
from tests.cases import each
from tests.secret_shapes import MARK, leaks, shown

OUT = Destination("lake", "out/dataset1/")

#: Whether readers skip a path; the jar for Spark's own writers is tested with the same.
HIDDEN: dict[str, bool] = json.loads((Path(__file__).parents[2] / "hidden_paths.json").read_text())

#: Paths that a dataset's data file may not have, and what is wrong with them.
BAD_PATHS = {
    "": "empty element",
    "/a": "empty element",
    "a//b": "empty element",
    "a/": "empty element",
    "..": r"'\.' or '\.\.'",
    "../x": r"'\.' or '\.\.'",
    "a/../../x": r"'\.' or '\.\.'",
    "a/./x": r"'\.' or '\.\.'",
    "a\x00b": "control character",
    "a\nb": "control character",
    "a\x1fb": "control character",
    "a\x7fb": "control character",
    "a\ud800b": "control character",
    "a\ufffeb": r"U\+FFFE, .*replace it",
    "a\uffffb": "control character",
    "a\\..\\b": "backslash",
    "_SUCCESS": "hidden",
    "a/_temporary/b": "hidden",
    "__magic_job-1/b": "hidden",
    "a/.b": "hidden",
}


@pytest.mark.parametrize(
    ("uri", "bucket", "prefix"),
    [
        ("s3://lake/flights", "lake", "flights/"),
        ("s3://lake/flights/", "lake", "flights/"),
        ("s3a://lake/a/b", "lake", "a/b/"),
        ("s3n://lake/a b/ü", "lake", "a b/ü/"),
        ("s3://lake", "lake", ""),
        ("s3://lake/", "lake", ""),
        ("s3://my.bucket-1/dt=1%2F2", "my.bucket-1", "dt=1%2F2/"),
    ],
)
def test_a_destination_is_a_directory(uri: str, bucket: str, prefix: str) -> None:
    """However its URI is spelled, a destination's prefix is empty or ends with a slash."""
    parsed = Destination.parse(uri)
    assert (parsed.bucket, parsed.prefix) == (bucket, prefix)
    assert parsed.uri == f"s3://{bucket}/{prefix}"
    assert Destination.parse(parsed.uri) == parsed


@each(
    "uri",
    [
        "", "lake/flights", "/lake/flights", "http://lake/flights", "S3://lake/x", "s3:/lake/x", "s3://",
        "s3:///flights", "s3://a/b", "s3://-lake/x", "s3://la ke/x", "s3://la\nke/x", "s3://lake/a//b",
        "s3://lake/../b", "s3://lake/a/..", "s3://lake/./b", "s3://lake/a\x00b", "s3://lake/a\nb",
        "s3://lake/a\\b", "s3://lake/a\ud800b", "s3://lake/" + "x" * (MAX_KEY_BYTES - 255),
        "s3://lake/" + "ü" * 400,
    ],
)  # fmt: skip
def test_what_is_not_a_directory_on_s3_is_refused(uri: str) -> None:
    """An invalid URI, or one whose path is ambiguous, is an invalid destination."""
    with pytest.raises(InvalidDestination):
        Destination.parse(uri)


def test_splitting_and_joining_are_inverse() -> None:
    """A URI is a bucket and a key, and the key is taken literally."""
    assert split_uri("s3a://lake/a//b?c#d") == ("lake", "a//b?c#d")
    assert split_uri("s3://lake") == ("lake", "")
    assert join_uri(*split_uri("s3://lake/a b")) == "s3://lake/a b"


def test_a_neighbour_is_outside() -> None:
    """``out/dataset10`` is not below ``out/dataset1``, by any check."""
    assert OUT.relative("out/dataset10/a") is None
    assert OUT.relative("out/dataset1") is None
    assert OUT.relative("out/dataset1/") is None
    assert OUT.relative("out/dataset1/a") == "a"
    with pytest.raises(InvalidRecord, match="outside the destination"):
        OUT.check_data_key("lake", "out/dataset10/a")


def test_the_root_of_a_bucket_holds_every_key() -> None:
    """With an empty prefix every key is below, and its path is the key."""
    root = Destination.parse("s3://lake")
    assert root.relative("a/b") == "a/b"
    assert root.relative("") is None
    assert root.check_data_key("lake", "a/b") == "a/b"
    assert root.below("x") == Destination("lake", "x/")


def test_directories_below_keep_their_slash() -> None:
    """A directory of a destination is a destination."""
    assert OUT.below("/a/") == Destination("lake", "out/dataset1/a/")
    assert OUT.key("a/b") == "out/dataset1/a/b"


@each("path", HIDDEN)
def test_what_readers_skip_is_hidden(path: str) -> None:
    """Like Spark, an element is hidden that begins with ``.``, or with ``_`` and is not a partition."""
    assert is_hidden(path) is HIDDEN[path]


@pytest.mark.parametrize("path", ["", "a/", "a_$folder$", "a/b_$folder$", "_SUCCESS", "a/.b"])
def test_markers_are_no_data(path: str) -> None:
    """What stands for a directory or is hidden is no data, and cannot be written as such."""
    assert not is_data(path)
    with pytest.raises(InvalidRecord):
        check_relative_path(path)


@pytest.mark.parametrize(
    "path",
    [
        "a",
        "a/b",
        "dt=2013-01-01/part-0.c000.snappy.parquet",
        "a b/ü%2F",
        "...",
        "a\x80\x85\x9f",
        "a\u2028\u2029b/\U0001f600\ufffd",
    ],
)
def test_paths_of_data_are_accepted(path: str) -> None:
    """Paths that real datasets have are accepted, unless they begin with a dot."""
    if path.startswith("."):
        with pytest.raises(InvalidRecord):
            check_relative_path(path)
    else:
        check_relative_path(path)
        assert OUT.check_data_key("lake", OUT.prefix + path) == path


@each("path", BAD_PATHS)
def test_paths_that_could_lead_elsewhere_are_refused(path: str) -> None:
    """A path that could leave the destination, be misread by a store, or be hidden, is an invalid record."""
    with pytest.raises(InvalidRecord, match=BAD_PATHS[path]):
        check_relative_path(path)
    with pytest.raises(InvalidRecord):
        OUT.check_data_key("lake", OUT.prefix + path)


@pytest.mark.parametrize(
    ("bucket", "key"),
    [
        ("other", "out/dataset1/a"), ("lake", "a"), ("lake", "out/a"), ("lake", "/out/dataset1/a"),
        ("Lake", "out/dataset1/a"), ("lake", "out/dataset1/../dataset2/a"), ("lake", ""),
    ],
)  # fmt: skip
def test_keys_elsewhere_are_refused(bucket: str, key: str) -> None:
    """A key in another bucket or another directory is an invalid record."""
    with pytest.raises(InvalidRecord):
        OUT.check_data_key(bucket, key)


def test_a_key_ends_at_the_store_s_limit() -> None:
    """A key has at most 1024 bytes of UTF-8, however few characters that is."""
    room = MAX_KEY_BYTES - len(OUT.prefix)
    OUT.check_data_key("lake", OUT.prefix + "x" * room)
    for path in ("x" * (room + 1), "ü" * (room // 2 + 1)):
        with pytest.raises(InvalidRecord, match="keys end at 1024: shorten"):
            OUT.check_data_key("lake", OUT.prefix + path)


def test_a_uri_for_hadoop_is_encoded() -> None:
    """Characters that ``java.net.URI`` cannot parse, or takes for something else, are percent-encoded."""
    assert hadoop_uri("lake", "out put/dt=1/a%20ü?#[|].csv") == (
        "s3a://lake/out%20put/dt=1/a%2520%C3%BC%3F%23%5B%7C%5D.csv"
    )


@each("scheme", ["s3", "s3a", "s3n", "http"])
@each("userinfo", [f"KEY:{MARK}", f"KEY:{MARK}/x+", f"KEY%3A{MARK}", MARK])
def test_keys_in_a_uri_are_not_repeated(scheme: str, userinfo: str) -> None:
    """A URI with keys before its bucket, as old Hadoops took it, is refused, and no error shows them."""
    with pytest.raises(InvalidDestination, match="flights") as caught:
        Destination.parse(f"{scheme}://{userinfo}@lake/flights/")
    assert leaks(shown(caught.value)) == []


@pytest.mark.parametrize(
    "uri",
    [
        "s3a://AKIA:se/cret@lake/flights/",
        "AKIA:se/cret@lake/flights/",
        "s3a:AKIA:se/cret@lake/flights/",
        "https://AKIA:se/cret@store.example.test/lake/",
        "https://store.example.test/lake/k?X-Amz-Signature=se/cret",
    ],
)
def test_a_secret_in_a_uri_is_not_repeated(uri: str) -> None:
    """An error about a URI shows neither credentials in it nor the query of a signed URL."""
    with pytest.raises(InvalidDestination) as error:
        Destination.parse(uri)
    assert "cret" not in str(error.value)
