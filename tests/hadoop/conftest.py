"""The releases of Hadoop, for the tests of this folder."""

from __future__ import annotations

import pytest

from tests.hadoop.real_hadoop import RELEASES, Hadoop


@pytest.fixture(scope="session", params=RELEASES)
def hadoop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Hadoop:
    """Return each release in its turn; pytest's cache, where it is on, remembers which jars those are."""
    cache = getattr(request.config, "cache", None)
    directory = cache.mkdir("hadoop") if cache is not None else tmp_path_factory.mktemp("hadoop")
    return Hadoop.get(request.param, directory)
