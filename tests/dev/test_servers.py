"""The directory of a demo or a stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.demo.servers import exit_code_of


def test_only_what_an_earlier_run_made_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home directory, where Airflow's own usually is, is refused; that of an earlier run is made anew."""
    monkeypatch.setattr("dev.demo.servers.end_in_order_on_signals", lambda: None)
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "airflow.db").touch()
    assert exit_code_of(lambda *_: True, tmp_path) == 1
    assert (tmp_path / "airflow" / "airflow.db").exists()
    assert "choose another --home" in capsys.readouterr().out
    fresh = tmp_path / "fresh"
    for _ in range(2):
        assert exit_code_of(lambda _, home: not (home / "s3").exists(), fresh) == 0
        (fresh / "s3").mkdir()
