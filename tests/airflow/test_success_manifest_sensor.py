"""Waiting for the right manifest."""

from __future__ import annotations

import pytest
from airflow.sdk import PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException

from airflow_s3commit.exceptions import StoreRejected, Unavailable
from airflow_s3commit.hooks import StoreAddress
from airflow_s3commit.sensors import S3SuccessManifestSensor
from tests.airflow.runs import DAY, FLIGHTS, at, commit, new_context, rendered, set_up


def sensor(**arguments: object) -> S3SuccessManifestSensor:
    """Return a sensor; for the day's partition by default."""
    asked = arguments or {"partitions": [DAY]}
    return S3SuccessManifestSensor(**{"task_id": "wait", "destination": FLIGHTS, **asked})


def job_found(waiting: S3SuccessManifestSensor, context: dict) -> str | None:
    """Search once and return the job of the manifest that was found."""
    answer = waiting.poke(context)
    return answer.xcom_value["job_id"] if isinstance(answer, PokeReturnValue) and answer.is_done else None


def test_it_waits_while_nothing_is_there(store, context) -> None:
    """Without a marker it waits."""
    assert sensor().poke(context) is False


def test_another_program_s_marker_is_ignored(store, context) -> None:
    """A ``_SUCCESS`` without a log is no commit, and the sensor keeps waiting."""
    store.put("lake", "flights/_SUCCESS", b"")
    waiting = sensor()
    assert waiting.poke(context) is False
    assert "no commit in" in waiting._seen


def test_it_returns_the_summary_of_the_right_manifest(store, context) -> None:
    """The XCom is the manifest's summary."""
    reference = commit(store)
    waiting = sensor()
    answer = waiting.poke(context)
    assert isinstance(answer, PokeReturnValue)
    assert answer.xcom_value["job_id"] == reference["job_id"]
    assert answer.xcom_value["files"] == 1
    assert (waiting.manifest_uri, waiting.address) == (answer.xcom_value["manifest"], StoreAddress())


def test_a_later_commit_does_not_hide_the_wanted_one(store, context) -> None:
    """``_SUCCESS`` belongs to a later job, and the wanted manifest is found, down to the given depth."""
    wanted = commit(store)
    commit(store, partition="dt=2013-01-02")
    assert job_found(sensor(), context) == wanted["job_id"]
    assert job_found(sensor(partitions=[DAY], search_depth=1), context) is None


def test_the_newest_of_several_is_taken(store, context) -> None:
    """Of two matching commits, the later one's manifest is returned."""
    commit(store, partition="dt=2013-01-01")
    newest = commit(store, partition="dt=2013-01-03")
    assert job_found(sensor(context={"dag_id": "nightly"}), context) == newest["job_id"]


def test_it_waits_for_this_job(store, context) -> None:
    """With a job given, only that job's manifest counts, whatever else is there."""
    commit(store)
    other = set_up(store)
    assert job_found(sensor(job=other), context) is None
    assert job_found(sensor(job=other["job_id"]), context) is None
    third = commit(store, partition="dt=2013-01-05")
    assert job_found(sensor(job=third), context) == third["job_id"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"run_id": "scheduled__2013-01-02"}, True),
        ({"run_id": "scheduled__2013-01-03"}, False),
        ({"context": {"dag_id": "nightly"}}, True),
        ({"context": {"dag_id": "weekly"}}, False),
        ({"newer_than": at(2013, 1, 1)}, True),
        ({"newer_than": "2013-01-01T00:00:00"}, True),
        ({"newer_than": at(2113, 1, 1)}, False),
        ({"partitions": DAY}, True),
        ({"partitions": [DAY, "dt=2013-01-02"]}, False),
        ({"partitions": [DAY], "min_files": 1}, True),
        ({"partitions": [DAY], "min_files": "2"}, False),
    ],
)
def test_every_condition_counts(store, context, asked, found) -> None:
    """A manifest that does not meet every condition does not end the wait."""
    commit(store)
    assert (job_found(sensor(**asked), context) is not None) == found


def test_a_logical_date_is_found_as_a_template_renders_it(store) -> None:
    """A template renders it with a space between day and time, and the manifest has a T."""
    commit(store, logical_date=at(2013, 1, 2).isoformat())
    waiting = sensor(context={"logical_date": "{{ logical_date }}"})
    run = new_context(logical_date=at(2013, 1, 2))
    waiting.render_template_fields(run)
    assert job_found(waiting, run) is not None


def test_a_late_manifest_is_found_by_the_same_sensor(store, context) -> None:
    """A look that finds nothing does not prevent a later one from finding it."""
    commit(store, partition="dt=2013-01-07")
    waiting = sensor()
    assert job_found(waiting, context) is None
    wanted = commit(store)
    assert job_found(waiting, context) == wanted["job_id"]


def test_the_outcome_names_the_unmet_condition(store, context) -> None:
    """It says what was wanted and what was found, of the newest manifest, in every search."""
    commit(store)
    commit(store, partition="dt=2013-01-07")
    waiting = sensor(newer_than=at(2113, 1, 1))
    for _ in range(3):
        assert waiting.poke(context) is False
        assert "the newest commit" in waiting._seen
        assert "newer_than: wanted a commit after 2113-01-01" in waiting._seen
        assert "found one at 20" in waiting._seen
    waiting = sensor(partitions=["dt=2013-02-01"], run_id="other")
    waiting.poke(context)
    assert "run_id: wanted 'other', found 'scheduled__2013-01-02'" in waiting._seen
    assert "partitions: wanted dt=2013-02-01, found dt=2013-01-07" in waiting._seen


def test_a_partition_is_found_by_its_plain_name(store, context) -> None:
    """The directory of a time has escapes, and the condition need not."""
    reference = commit(store, partition="dt=2013-01-01T03%3A00%3A00")
    assert job_found(sensor(partitions=["dt=2013-01-01T03:00:00"]), context) == reference["job_id"]


@pytest.mark.parametrize("asked", [{"partitions": [20130105]}, {"run_id": 5}, {"context": {"dag_id": 5}}])
def test_a_number_where_text_was_meant_is_refused(store, context, asked) -> None:
    """Native rendering makes numbers of text, which would never be found."""
    with pytest.raises(AirflowFailException, match="not text"):
        rendered(S3SuccessManifestSensor, "wait", destination=FLIGHTS, **asked).poke(context)


def test_a_template_without_a_value_is_refused(context) -> None:
    """In a run without a partition key the sensor fails at once; it would wait for ``dt=None``."""
    waiting = sensor(partitions=["dt={{ partition_key }}"])
    with pytest.raises(AirflowFailException, match="an expression without a value in this run"):
        waiting.render_template_fields({**context, "partition_key": None})


def test_a_missing_bucket_fails_at_once(store, context) -> None:
    """Waiting would not create the bucket."""
    with pytest.raises(AirflowFailException, match="NoSuchBucket"):
        sensor(destination="s3://swamp/flights/", partitions=[DAY]).poke(context)


def test_a_throttled_look_is_repeated(store, context, monkeypatch) -> None:
    """A search that the store rejects temporarily is repeated later."""

    def unavailable(*_: object, **__: object) -> object:
        raise Unavailable("503 Slow Down")

    monkeypatch.setattr(store, "list_objects", unavailable)
    waiting = sensor()
    assert waiting.poke(context) is False
    assert waiting._seen == "unavailable: 503 Slow Down"


def test_an_error_that_waiting_does_not_mend_is_raised(store, context, monkeypatch) -> None:
    """It keeps the task's retries, and is not waited for until the timeout."""

    def rejected(*_: object, **__: object) -> object:
        raise StoreRejected("501", code="NotImplemented")

    monkeypatch.setattr(store, "list_objects", rejected)
    with pytest.raises(StoreRejected):
        sensor().poke(context)


@pytest.mark.parametrize("asked", [{}, {"min_files": 1}])
def test_a_sensor_that_would_take_anything_is_refused(asked) -> None:
    """Yesterday's marker is always there, with files, so a condition must be given."""
    with pytest.raises(ValueError, match="even yesterday's"):
        S3SuccessManifestSensor(task_id="wait", destination=FLIGHTS, **asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"run_id": ""},
        {"run_id": "None"},
        {"job": ""},
        {"job": {}},
        {"newer_than": ""},
        {"newer_than": "yesterday"},
        {"partitions": ""},
        {"partitions": []},
        {"partitions": ["dt=2013-01-01", ""]},
        {"context": {}},
        {"context": {"dag_id": ""}},
        {"partitions": ["dt=2013-01-01"], "min_files": ""},
    ],
)
@pytest.mark.parametrize("deferrable", [False, True])
def test_a_condition_that_renders_to_nothing_fails(store, context, asked, deferrable) -> None:
    """Without its condition a sensor would take yesterday's manifest, so the task fails and names it."""
    commit(store)
    waiting = rendered(
        S3SuccessManifestSensor, "wait", destination=FLIGHTS, **{"partitions": ["dt=1"], **asked}
    )
    waiting.deferrable = deferrable
    with pytest.raises(AirflowFailException, match=next(reversed(asked))):
        waiting.execute(context)


@pytest.mark.parametrize("missing", ["run_id", "min_files"])
def test_a_condition_whose_xcom_is_missing_fails(store, context, missing) -> None:
    """A missing XCom resolves to None, which must not count as an unset condition."""
    commit(store)
    waiting = sensor(partitions=[DAY], **{missing: "{{ a }}"})
    setattr(waiting, missing, None)
    with pytest.raises(AirflowFailException, match=f"{missing} has no value"):
        waiting.poke(context)


def test_its_arguments_are_templates(context) -> None:
    """The day in a template becomes the partition that is waited for."""
    waiting = sensor(
        destination="s3://lake/{{ partition_key }}/",
        partitions=["dt={{ partition_key }}"],
        min_files="{{ params.least }}",
    )
    waiting.render_template_fields({**context, "params": {"least": 2}})
    assert (waiting.destination, waiting.partitions) == ("s3://lake/2013-01-01/", ["dt=2013-01-01"])
    assert waiting.min_files == "2"
