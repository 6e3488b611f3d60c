"""The S3 server of the tutorial; that it starts and ends is in ``tests/docs/test_tutorial.py``."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from airflow_s3commit.testing import ProgramFailed, S3Server
from airflow_s3commit.testing import __main__ as serve


def test_the_keys_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    """The file that a shell sources holds a secret key, whatever was there before."""
    file = tmp_path / "s3.env"
    file.write_text("old")
    file.chmod(0o644)
    serve.write_private(file, serve._exports({"AWS_SECRET_ACCESS_KEY": "a b'c"}))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() == "export AWS_SECRET_ACCESS_KEY='a b'\"'\"'c'\n"


def test_a_server_that_did_not_start_removes_no_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may be that of another server, which runs on the same directory."""

    def refuse(_: S3Server) -> None:
        raise ProgramFailed("another one runs")

    monkeypatch.setattr(S3Server, "start", refuse)
    monkeypatch.setattr(serve, "end_in_order_on_signals", lambda: None)
    file = tmp_path / "s3.env"
    file.write_text("those of the other")
    assert serve.main(["--data", str(tmp_path), "--environment", str(file)]) == 1
    assert file.read_text() == "those of the other"


def test_help_says_what_it_makes(capsys: pytest.CaptureFixture[str]) -> None:
    """The options name the file and the directory that are made where it is started."""
    with pytest.raises(SystemExit) as ended:
        serve.main(["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "s3.env" in told
    assert "s3-data" in told
