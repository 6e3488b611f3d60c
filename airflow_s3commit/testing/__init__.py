"""Helpers for tests of pipelines: a real S3 server on loopback, a store in memory, and a store with faults.

Install it with ``pip install "airflow-s3commit[testing]"``. The pytest fixtures are in
`airflow_s3commit.testing.pytest_plugin`. Nothing else in the package imports from here.
"""

from __future__ import annotations

from airflow_s3commit._names import lazy

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from airflow_s3commit.store.memory import MemoryStore
    from airflow_s3commit.testing.faulty_store import Crash, Effect, Fault, FaultyStore, StoreCall
    from airflow_s3commit.testing.programs import ProgramFailed
    from airflow_s3commit.testing.s3_server import S3Server

__all__ = ["Crash", "Effect", "Fault", "FaultyStore", "MemoryStore", "ProgramFailed", "S3Server", "StoreCall"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__spec__)
