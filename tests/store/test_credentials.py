"""Endpoints and keys are checked wherever they come from, and no message shows a secret."""

from __future__ import annotations

import pytest

from airflow_s3commit.exceptions import AccessDenied, StoreUnsuitable
from airflow_s3commit.store.credentials import StoreAddress, check_keys, is_aws_host, without_userinfo
from tests.cases import each
from tests.secret_shapes import MARK, leaks, shown


@each(
    ("address", "is_amazons"),
    [
        (None, True),
        ("https://s3.eu-west-1.amazonaws.com", True),
        ("s3.cn-north-1.amazonaws.com.cn:443", True),
        ("https://s3.eusc-de-east-1.amazonaws.eu", True),
        ("https://notamazonaws.com", False),
        ("https://amazonaws.com.example.test", False),
        ("http://[", False),
        ("", False),
    ],
)
def test_amazon_s_own_hosts_are_those_below_its_domains(address: str | None, is_amazons: bool) -> None:
    """A host is Amazon's by the end of its name alone, in every partition, and so is no address at all."""
    assert is_aws_host(address) is is_amazons


@each(
    ("url", "plain"),
    [
        ("https://h", "https://h"),
        ("http://h:9000//", "http://h:9000"),
        ("https://h/s3/lake-1/~x.y_z/", "https://h/s3/lake-1/~x.y_z"),
        *(
            (url, None)
            for url in ("h:9000", "s3://h", "https://", "https://:80", "https://h:0", "https://h:99999")
        ),
        *((f"https://h/{path}", None) for path in ("a/../b", ".", "a//b", "a%2Fb", "ä", "a b", "a?b", "a#b")),
        *((f"https://h{end}", None) for end in ("?", "#", "\n", "/ä")),
        *((url, None) for url in (f"https://me:{MARK}@h", f"https://me%3A{MARK}%40h")),
    ],
)
def test_one_store_has_one_address(url: str, plain: str | None) -> None:
    """Slashes at its end do not matter; a password, or a path that clients sign differently, is refused."""
    if plain is not None:
        assert StoreAddress(url).endpoint_url == plain
        return
    with pytest.raises(StoreUnsuitable, match="that was given") as refused:
        StoreAddress(url)
    assert leaks(shown(refused.value)) == []


def test_an_address_is_completed_by_another() -> None:
    """Every field that is set stays, also a flag that is False, and the others are taken over."""
    other = StoreAddress("http://other", "their-region", path_style=True)
    assert StoreAddress().or_else(other) == other
    own = StoreAddress("http://own", "own-region", path_style=False)
    assert own.or_else(other) == own


@each(
    ("name", "shape"),
    [
        *(("access key", shape) for shape in (" {}", "{} ", "{0} {0}", "{}\n", "{}ä")),
        *(
            ("secret key", shape)
            for shape in (" {}", "\xa0{}", "{} ", "{}\n", "{0}\t{0}", "{}\x7f", "{}\udce4")
        ),
        *(("session token", shape) for shape in (" {}", "{0} {0}", "{}\n", "{}ä")),
    ],
)
def test_a_key_that_cannot_sign_is_named(name: str, shape: str) -> None:
    """Of the keys that sign a request the message names the one that cannot, and does not show it."""
    keys = {"access key": "AKIA/+=", "secret key": "any text, ß too", "session token": "t/+="}
    check_keys(*keys.values(), "given")
    check_keys(None, None, "", "given")
    with pytest.raises(AccessDenied, match=f"the {name} given has") as refused:
        check_keys(*(keys | {name: shape.format(MARK)}).values(), "given")
    assert leaks(shown(refused.value), shape.format(MARK)) == []


@each(
    ("text", "safe"),
    [
        ("s3://lake/a@b", "s3://…@b"),
        ("http://me:pw@h/k", "http://…@h/k"),
        ("http://me%3Apw%40h/k", "http://…@h/k"),
        ("me:pw@h", "…@h"),
        ("http://me:p\nw@h", "http://…@h"),
        ("http://me:p?w@h/k", "http://…@h/k"),
        ("https://h/k?X-Amz-Signature=1\n2", "https://h/k?…"),
        ("https://h/k", "https://h/k"),
    ],
)
def test_a_uri_is_shown_without_what_signs(text: str, safe: str) -> None:
    """User name, password and the query of a signed URL are left out, whatever characters they have."""
    assert without_userinfo(text) == safe
