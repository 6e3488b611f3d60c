"""Connections that libcurl opens and closes are polled as it asks."""

from __future__ import annotations

import os
import select

import pytest

pytest.importorskip("pycurl")

import pycurl

from airflow_s3commit.store.s3.connections import _poll


def test_a_descriptor_with_the_number_of_a_closed_one_is_polled() -> None:
    """A descriptor is polled for what libcurl asks, though one of its number was closed unannounced."""
    with select.epoll() as poller:
        first, _ = os.pipe()
        _poll(poller, pycurl.POLL_IN, first)
        os.close(first)
        again, end = os.pipe()
        if again != first:
            os.dup2(again, first)
        _poll(poller, pycurl.POLL_IN, first)
        os.write(end, b"x")
        assert poller.poll(1.0) == [(first, select.EPOLLIN)]
        _poll(poller, pycurl.POLL_OUT, first)
        assert poller.poll(0) == []
        os.close(first)
        _poll(poller, pycurl.POLL_REMOVE, first)
