"""The built site: it has no warnings, and requests nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

pytestmark = pytest.mark.xdist_group("docs-site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site once, with warnings as errors: links, anchors, pages, references."""
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    """The site can be read without a network: scripts, styles, fonts and pictures are its own."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        html = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]+src=\"?(https?:[^\s\">]+)", html)
        loaded += re.findall(r"<link[^>]+href=\"?(https?:[^\s\">]+)", html)
        assert loaded == [], page


def test_references_are_filled_in(site: Path) -> None:
    """The pages that are made from the code hold what the code has."""
    expected = {
        "reference/cli": ("s3commit sweep", "--older-than", "--policy"),
        "reference/exceptions": ("OutcomeUnknown", "may have happened"),
        "reference/job-options": ("track_pending", "pendingset_format"),
        "reference/operators": ("S3CommitSetupOperator", "conflict_mode", "kill_window"),
        "reference/records": ("Manifest", "files_sha256", "destinationKey"),
        "reference/spark": ("partitionBy", "spark.s3commit.job.id", "write_pending"),
    }
    for page, words in expected.items():
        html = (site / page / "index.html").read_text()
        assert [word for word in words if word not in html] == [], page
        assert "<!-- generated" not in html
        assert "[object" not in html


def test_diagrams_are_in_the_page(site: Path) -> None:
    """Diagrams are part of their page, have words for those who cannot see, and no colours of their own."""
    html = (site / "explanation" / "protocol" / "index.html").read_text()
    drawn = re.findall(r"<figure class=\"?diagram.*?</figure>", html, re.DOTALL)
    assert len(drawn) == 3
    for diagram in drawn:
        assert "aria-label" in diagram
        assert "fill=" not in diagram
