"""Doctor: the checks in words, the policies to paste, and an exit code for scripts."""

from __future__ import annotations

import json
import time

import pytest

from airflow_s3commit import MemoryStore
from airflow_s3commit.cli import store_options
from tests.cli.conftest import RunProgram, plain_json
from tests.protocol.building import Lake

DEST = "s3://lake/flights/"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """Return a store whose clock is this machine's."""
    made = MemoryStore(("lake", "records"), now=time.time)
    monkeypatch.setattr(store_options, "open_store", lambda _: made)
    return made


def test_a_good_bucket_is_fit(store: MemoryStore, run: RunProgram) -> None:
    """Every check by name; a warning has its remedy and does not count; nothing is left behind."""
    result = run("doctor", DEST, "--staging", "s3://records/x/")
    assert result.exit_code == 0
    assert "fit for jobs, with 1 warning" in result.stdout
    assert "remedy: add the rule" in result.stdout
    assert "s3://records/x/" in result.stdout
    for bucket in ("lake", "records"):
        assert list(store.list_objects(bucket, "")) == []
        assert list(store.list_uploads(bucket, "")) == []


def test_json_has_every_check(store: MemoryStore, run: RunProgram) -> None:
    """With verdicts that a script can filter by."""
    told = plain_json(run("doctor", DEST, "--json"))
    assert told["healthy"] is True
    assert {"name": "conditional create", "verdict": "ok"}.items() <= {
        key: value
        for check in told["checks"]
        if check["name"] == "conditional create"
        for key, value in check.items()
    }.items()


def test_a_bucket_that_is_missing_fails(store: MemoryStore, run: RunProgram) -> None:
    """Exit code 1: the doctor was there, and the patient is not well."""
    result = run("doctor", "s3://nowhere/x/")
    assert result.exit_code == 1
    assert "FAILED" in result.stdout
    assert "NOT fit for jobs" in result.stdout


def test_the_policy_is_printed_as_it_is_pasted(lake: Lake, run: RunProgram) -> None:
    """Pure JSON on the standard output, and the store is not asked for anything."""
    result = run("doctor", DEST, "--policy", "--staging", "s3://records/x/", "--region", "cn-north-1")
    policy = json.loads(result.stdout)
    assert policy["Version"] == "2012-10-17"
    assert policy["Statement"][0]["Resource"] == ["arn:aws-cn:s3:::lake/flights/*"]
    assert "records" in result.stdout
    assert lake.store.calls == []
    key = "arn:aws:kms:eu-west-1:1:key/k"
    assert key in run("doctor", DEST, "--policy", "--kms-key", key).stdout


def test_the_lifecycle_rule_is_printed_with_a_warning(lake: Lake, run: RunProgram) -> None:
    """That setting it replaces the others is said, beside the output."""
    result = run("doctor", DEST, "--lifecycle", "--days", "14")
    rule = json.loads(result.stdout)["Rules"][0]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 14}
    assert "replaces all rules" in result.stderr
    assert lake.store.calls == []


def test_both_documents_come_in_one_object_for_scripts(lake: Lake, run: RunProgram) -> None:
    """The output has their names and nothing else."""
    result = run("doctor", DEST, "--policy", "--lifecycle", "--json")
    assert set(plain_json(result)) == {"policy", "lifecycle"}
    assert result.stderr == ""


def test_options_that_go_with_others_are_not_taken_alone(lake: Lake, run: RunProgram) -> None:
    """A key without a policy, or no days at all, are mistakes."""
    assert run("doctor", DEST, "--kms-key", "arn").exit_code == 2
    assert run("doctor", DEST, "--lifecycle", "--days", "0").exit_code == 2


OPTIONS = (
    "--object-option", "sse=aws:kms", "--object-option", "sse_bucket_key=true", "--object-option",
    "tags.team=flights", "--object-option", "headers.x-amz-meta-source=a=b",
)  # fmt: skip


def test_object_options_are_tried(store: MemoryStore, run: RunProgram) -> None:
    """Each option that is given has its line."""
    told = plain_json(run("doctor", DEST, "--json", *OPTIONS))
    names = [check["name"] for check in told["checks"] if check["verdict"] == "ok"]
    assert names[-4:-1] == ["object option sse", "object option tags", "object option headers"]


def test_object_options_lead_to_the_policy(lake: Lake, run: RunProgram) -> None:
    """The policy allows what the options need."""
    assert "s3:PutObjectTagging" in run("doctor", DEST, "--policy", *OPTIONS).stdout


@pytest.mark.parametrize("text", ["colour=blue", "sse=SSE-C", "sse.x=1", "sse_bucket_key=maybe", "tags=1"])
def test_a_wrong_object_option_is_a_usage_error(lake: Lake, run: RunProgram, text: str) -> None:
    """It is refused before the store is asked for anything, with the name of the option."""
    result = run("doctor", DEST, "--object-option", text)
    assert result.exit_code == 2
    assert "--object-option" in result.stderr


def test_advice_repeats_object_options(lake: Lake, run: RunProgram) -> None:
    """What is pasted writes with the same encryption."""
    result = run("show", lake.destination, "11111111-aaaa-4bbb-8ccc-000000000009", *OPTIONS)
    assert "--object-option sse=aws:kms --object-option sse_bucket_key=true" in result.stderr
