"""Signed jobs as tasks: the key is only in a connection."""

from __future__ import annotations

import json
import logging

import boto3
import pytest
from airflow.sdk.exceptions import AirflowFailException
from moto import mock_aws

from airflow_s3commit import KmsSigner
from airflow_s3commit.exceptions import InvalidOption
from airflow_s3commit.hooks import configured_signer, s3_commit
from airflow_s3commit.operators import (
    S3CommitAbortOperator,
    S3CommitCollectOperator,
    S3CommitJobOperator,
    S3CommitResolveConflictsOperator,
    S3CommitSetupOperator,
)
from tests.airflow.runs import FLIGHTS, visible, write_stage

KEY = "never-to-be-seen-" * 3


@pytest.fixture
def keyed(monkeypatch):
    """Name a connection for the key, and return what turns signing on and off."""

    def turn(password: str | None, **extra: str) -> None:
        described = {"conn_type": "aws" if extra else "generic", "password": password, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_SIGNING", json.dumps(described))
        monkeypatch.setattr(s3_commit, "SIGNING_CONNECTION", "signing" if password or extra else None)

    return turn


def test_a_job_from_setup_to_manifest(store, context, keyed, caplog) -> None:
    """Operators sign and check with the connection's key; Spark writes without it; nothing shows it."""
    caplog.set_level(logging.DEBUG)
    keyed(KEY)
    reference = S3CommitSetupOperator(task_id="setup", destination=FLIGHTS, conflict_mode="append").execute(
        context
    )
    stage = write_stage(store, reference)
    told = [reference, stage]
    told.append(S3CommitCollectOperator(task_id="c", job=reference, stages=[stage]).execute(context))
    planned = S3CommitResolveConflictsOperator(task_id="r", job=reference, stages=[stage]).execute(context)
    told.append(planned)
    keyed(None)
    for step in (
        S3CommitJobOperator(task_id="commit", job=reference, conflicts=planned),
        S3CommitCollectOperator(task_id="c", job=reference, stages=[stage]),
    ):
        with pytest.raises(AirflowFailException, match=r"SignatureRefused.*signing_conn_id"):
            step.execute(context)
    assert visible(store) == []
    keyed(KEY)
    told.append(S3CommitJobOperator(task_id="commit", job=reference, conflicts=planned).execute(context))
    assert len(visible(store)) == 1
    kept = [store.get("lake", info.key).body for info in store.list_objects("lake", "")]
    signed = [json.loads(body).get("signature") for body in kept if body.startswith(b'{"version":1,"job_id"')]
    assert any(signed)
    assert "never-to-be-seen" not in f"{told} {kept} {caplog.text} {dict(context)}"


def test_a_teardown_without_the_key_ends_nothing(store, context, keyed) -> None:
    """The abort of a signed job is refused without the setting, and done with it."""
    keyed(KEY)
    reference = S3CommitSetupOperator(task_id="setup", destination=FLIGHTS, conflict_mode="append").execute(
        context
    )
    write_stage(store, reference)
    abort = {"task_id": "abort", "job": reference, "kill_window": 0}
    keyed(None)
    with pytest.raises(AirflowFailException, match="SignatureRefused"):
        S3CommitAbortOperator(**abort).execute(context)
    assert list(store.list_uploads("lake", ""))
    keyed(KEY)
    with pytest.raises(AirflowFailException, match="1 pending uploads were aborted"):
        S3CommitAbortOperator(**abort).execute(context)
    assert not list(store.list_uploads("lake", ""))


def test_a_short_password_is_named_by_its_connection(keyed) -> None:
    """The message says where to look, and does not repeat it."""
    keyed("too-short")
    with pytest.raises(InvalidOption, match=r"the connection 'signing'.*32 bytes") as refusal:
        configured_signer()
    assert "too-short" not in str(refusal.value)


def test_a_key_of_kms(keyed, monkeypatch) -> None:
    """The extra ``kms_key_id`` of an ``aws`` connection names the key that signs."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        made = boto3.client("kms", "eu-west-1").create_key(KeyUsage="GENERATE_VERIFY_MAC", KeySpec="HMAC_256")
        keyed(None, kms_key_id=made["KeyMetadata"]["KeyId"], region_name="eu-west-1")
        signer = configured_signer()
        assert isinstance(signer, KmsSigner)
        assert signer.verify(b"message", signer.sign(b"message"))
        assert not signer.verify(b"another", signer.sign(b"message"))
