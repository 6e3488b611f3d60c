"""The program as a whole: help that teaches, errors with remedies, exit codes, the way to a store."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from airflow_s3commit import S3Config, S3Store, __version__, register_destination
from airflow_s3commit.cli.app import program
from airflow_s3commit.cli.command import Connection, StoreProvider, open_store
from airflow_s3commit.cli.output import ExitCode, exit_code
from airflow_s3commit.exceptions import (
    AccessDenied,
    NoSuchBucket,
    OutcomeUnknown,
    S3CommitError,
    Unavailable,
)
from airflow_s3commit.testing import StoreCall
from tests.cli.conftest import FILES, RunProgram, plain_json
from tests.protocol.building import OURS, THEIRS, Lake
from tests.secret_shapes import SHAPES, URLS, leaks, shown

COMMANDS = sorted(program.commands)


def test_a_closed_pipe_is_no_finding(lake: Lake, run: RunProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    """``| head`` ends a command with a code of its own, also while a table or an error is written."""

    def closed(*_: object, **__: object) -> None:
        raise BrokenPipeError

    lake.sealed(FILES).commit()
    monkeypatch.setattr("rich.console.Console._write_buffer", closed)
    assert [run(command, lake.destination).exit_code for command in ("log", "verify")] == [141, 141]
    monkeypatch.setattr("click.echo", closed)
    assert run("show", lake.destination, "unknown", "--json").exit_code == 141


def test_a_name_that_the_encoding_lacks_does_not_hide_a_commit(lake: Lake) -> None:
    """What was committed ends with 0, and the name is written with escapes."""
    lake.sealed(FILES, said={"dag": "日報"})
    done = CliRunner(charset="latin-1").invoke(program, ["commit", lake.destination, OURS])
    assert (done.exit_code, "\\u65e5\\u5831" in done.stdout) == (0, True)


def test_a_closed_standard_output_is_no_error(
    lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service may start the program without one, and the exit code says how it went."""
    lake.sealed(FILES).commit()
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(SystemExit, match=r"^0$"):
        program.main(["log", lake.destination])
    assert capsys.readouterr().err == ""


def test_all_commands_are_there(run: RunProgram) -> None:
    """The help has every command on one uncut line, and every exit code."""
    assert (
        sorted(
            [
                "jobs",
                "show",
                "pending",
                "setup",
                "put",
                "publish",
                "seal",
                "commit",
                "compact",
                "abort",
                "recover",
                "sweep",
                "rollback",
                "repair",
                "verify",
                "adopt",
                "log",
                "manifest",
                "doctor",
            ]
        )
        == COMMANDS
    )
    text = run("--help").stdout
    assert "..." not in text.replace("[ARGS]...", "")
    for command in COMMANDS:
        assert f"\n  {command} " in text
    for code in ("0", "1", "2", "3", "4", "5", "70", "130"):
        assert f"\n  {code} " in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_by_examples(run: RunProgram, command: str) -> None:
    """Help has arguments, grouped options and examples that begin with the command."""
    result = run(command, "--help")
    assert result.exit_code == 0
    for heading in ("Arguments:", "Store:", "Output:", "Examples:"):
        assert heading in result.stdout
    examples = result.stdout.partition("Examples:")[2]
    assert f"  s3commit {command} s3://" in examples
    assert "--endpoint-url" in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_takes_a_credential(command: str) -> None:
    """Every user of the machine can see a command line."""
    names = {name for param in program.commands[command].params for name in param.opts}
    assert not [
        name for name in names if any(word in name for word in ("secret", "access", "token", "password"))
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_release_of_click_repeats_a_text_that_is_refused(command: str) -> None:
    """Older ones show a text that a plain function refuses, which may be a URI with a password."""
    types = {type(param.type) for param in program.commands[command].params}
    assert click.types.FuncParamType not in types


def test_the_version_is_printed(run: RunProgram) -> None:
    """The output is name and version, and nothing else."""
    assert run("--version").stdout == f"s3commit {__version__}\n"


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("nothing",),
        ("jobs",),
        ("jobs", "/local/path"),
        ("jobs", "s3://lake/../x"),
        ("show", "s3://lake/x", "a/b"),
        ("jobs", "s3://lake/x", "--endpoint-url", "localhost:9000"),
        ("jobs", "s3://lake/x", "--endpoint-url", "http://me:pw@localhost"),
        ("jobs", "s3://lake/x", "--no-verify-ssl", "--ca-bundle", __file__),
        ("commit", "s3://lake/x", "j", "--stage", "spark"),
        ("seal", "s3://lake/x", "j", "--stage", "a b", "--attempt", "1"),
        ("seal", "s3://lake/x", "j", "--stage", "a", "--attempt", "try-1"),
        ("setup", "s3://lake/x", "--job-id", "tonight"),
        ("jobs", "s3://lake/*"),
        ("show", "s3://lake/x"),
    ],
)
def test_a_wrong_command_line_is_code_2(lake: Lake, run: RunProgram, args: tuple[str, ...]) -> None:
    """The error is in words, or JSON for scripts, and the store is not asked."""
    result = run(*args)
    assert result.exit_code == 2
    assert "pw" not in result.output
    assert lake.store.calls == []
    if args:
        told = plain_json(run(*args, "--json"))["error"]
        assert (told["type"], told["exit_code"]) == ("UsageError", 2)


@pytest.mark.parametrize(
    ("error", "code", "advice"),
    [
        (AccessDenied("HeadBucket of s3://lake/: AccessDenied"), 4, "s3commit doctor s3://lake/flights/"),
        (NoSuchBucket("bucket lake does not exist"), 4, "s3commit doctor"),
        (Unavailable("the store could not be reached"), 4, "--endpoint-url"),
        (OutcomeUnknown("the answer was lost"), 5, "run the same command again"),
    ],
)
def test_errors_say_what_happened_and_what_to_do(
    lake: Lake, run: RunProgram, error: S3CommitError, code: int, advice: str
) -> None:
    """There is one message, the next command, and a code by the outcome; scripts get one object."""

    def fail(_call: StoreCall) -> None:
        raise error

    lake.store.before = fail
    result = run("show", lake.destination, OURS)
    assert result.exit_code == code == exit_code(error)
    assert f"error: {error}" in result.stderr
    assert advice in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""
    told = plain_json(run("show", lake.destination, OURS, "--json"))["error"]
    assert (told["type"], told["exit_code"]) == (type(error).__name__, code)
    assert told["outcome"] == ("outcome_unknown" if code == 5 else "did_not_happen")
    assert (told["job_id"], told["bucket"], told["destination"]) == (OURS, "lake", lake.destination)
    assert advice in str(told["next"])


def test_debug_shows_where_an_error_comes_from(lake: Lake, run: RunProgram) -> None:
    """There is no traceback without it."""
    assert "Traceback" in run("show", lake.destination, OURS, "--debug").stderr


def test_a_bug_is_distinguished_from_an_error(lake: Lake, run: RunProgram) -> None:
    """It has its own exit code, its place, and how to report it."""

    def break_down(_call: StoreCall) -> None:
        raise ZeroDivisionError("oops")

    lake.store.before = break_down
    result = run("jobs", lake.destination)
    assert result.exit_code == int(ExitCode.INTERNAL)
    assert "a bug: ZeroDivisionError: oops (break_down, line " in result.stderr
    assert "--debug" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in run("jobs", lake.destination, "--debug").stderr
    told = plain_json(run("jobs", lake.destination, "--json"))["error"]
    assert (told["type"], told["exit_code"]) == ("ZeroDivisionError", 70)


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt, 130), (BrokenPipeError, 141)])
def test_an_interruption_has_its_code(
    lake: Lake, run: RunProgram, raised: type[BaseException], code: int
) -> None:
    """Ctrl-C, and a reader that has seen enough, end it without a traceback."""

    def end(_call: StoreCall) -> None:
        raise raised

    lake.store.before = end
    result = run("jobs", lake.destination)
    assert result.exit_code == code
    assert "Traceback" not in result.output


def test_warnings_of_the_engine_are_shown_beside_the_result(lake: Lake, run: RunProgram) -> None:
    """Messages are on standard error, without a traceback; logging is left unchanged."""
    lake.run_task(lake.set_up(), FILES)
    lake.tamper(lake.pendingset_key(), cut=9)
    logger = logging.getLogger("airflow_s3commit")
    before = (logger.handlers[:], logger.level, logger.propagate)
    result = run("abort", lake.destination, OURS, "--json")
    assert plain_json(result)["result"] == "aborted"
    assert "warning: " in result.stderr
    assert "Traceback" not in result.stderr
    assert (logger.handlers, logger.level, logger.propagate) == before


def test_the_options_lead_to_the_store(lake: Any, run: RunProgram, tmp_path: Path) -> None:
    """Address, region, profile and style arrive as given, and what is not given is left to boto3."""
    bundle = tmp_path / "ca.pem"
    bundle.write_text("")
    run("jobs", lake.destination)
    run(
        "jobs", lake.destination, "--endpoint-url", "https://s3.example.test", "--region", "eu-west-1",
        "--profile", "ops", "--virtual-hosted", "--ca-bundle", str(bundle), "--patience", "5",
    )  # fmt: skip
    run("jobs", lake.destination, "--path-style", "--no-verify-ssl")
    assert lake.opened == [
        Connection(S3Config()),
        Connection(
            S3Config(
                endpoint_url="https://s3.example.test", region="eu-west-1", profile="ops", path_style=False,
                verify=str(bundle),
            ),
            5.0,
        ),
        Connection(S3Config(path_style=True, verify=False)),
    ]  # fmt: skip


def test_advice_leads_to_the_same_store(lake: Lake, run: RunProgram) -> None:
    """A pasted command has the destination and options of the original."""
    more = ("--profile", "ops team", "--path-style", "--no-verify-ssl")
    result = run("show", lake.destination, OURS, *more)
    assert "--profile 'ops team' --path-style --no-verify-ssl" in result.stderr


def test_advice_names_the_connection_of_airflow(lake: Lake, run: RunProgram) -> None:
    """A pasted command is Airflow's with the same connection, and destinations of others are left out."""
    registry = "s3://lake/registry/"
    for name in ("lake", "other"):
        register_destination(lake.store, registry, f"s3://lake/{name}/", aws_conn_id=name)

    def by_airflow(*words: str) -> Result:
        return CliRunner().invoke(program, words, obj=StoreProvider(lambda _: lake.store, "lake"))

    advised = by_airflow("show", lake.destination, OURS, "--region", "eu-west-1").stderr
    assert f"airflow s3commit jobs {lake.destination} --region eu-west-1 --aws-conn-id lake" in advised
    found = by_airflow("jobs", "--registry", registry)
    assert "at 1 destination," in found.stdout
    assert "left out: s3://lake/other/ uses the connection other" in found.stderr.replace("\n", " ")


def test_records_that_a_command_writes_are_encrypted_as_asked(
    lake: Lake, run: RunProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket may demand it, also of the record by which an id that no job had is refused from now on."""
    lake.sealed(FILES).commit()
    sent: list[Any] = []
    put = lake.store.put
    monkeypatch.setattr(
        lake.store, "put", lambda *what, **how: sent.append(how.get("headers")) or put(*what, **how)
    )
    assert run("abort", lake.destination, THEIRS, "--object-option", "sse=AES256").exit_code == 0
    assert sent
    assert all(headers == {"x-amz-server-side-encryption": "AES256"} for headers in sent)


def test_a_store_is_opened_without_asking_it() -> None:
    """Opening one sends nothing, so that ``--policy`` works anywhere."""
    config = S3Config(endpoint_url="http://127.0.0.1:9", region="us-east-1", access_key="k", secret_key="s")
    assert isinstance(open_store(Connection(config)), S3Store)


def test_a_missing_profile_is_an_ordinary_error(
    run: RunProgram, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """There is no traceback of boto3's."""
    monkeypatch.setattr("airflow_s3commit.cli.command.open_store", open_store)
    result = run("jobs", "s3://lake/x", "--profile", "nobody", AWS_CONFIG_FILE=str(tmp_path / "none"))
    assert result.exit_code == 4
    assert "nobody" in result.stderr


@pytest.mark.parametrize("flags", [(), ("--debug",), ("--json",)])
@pytest.mark.parametrize("url", URLS)
def test_no_password_of_an_endpoint_is_shown(run: RunProgram, url: str, flags: tuple[str, ...]) -> None:
    """An endpoint with a password, from an option or the environment, is refused and not repeated."""
    given = run("jobs", "s3://lake/flights/", "--endpoint-url", url, *flags)
    assert given.exit_code == ExitCode.USAGE
    named = run("jobs", "s3://lake/flights/", *flags, AWS_ENDPOINT_URL_S3=url, AWS_DEFAULT_REGION="eu-west-1")
    assert named.exit_code in (ExitCode.REFUSED, ExitCode.DID_NOT_HAPPEN)
    for result in (given, named):
        assert leaks(shown(result.output, result.stderr, result.exception or "")) == []


@pytest.mark.parametrize("shape", ["line end", "line end within", "tab", "non-ASCII"])
def test_an_unusable_token_is_named(run: RunProgram, shape: str) -> None:
    """A token that cannot be sent is named and not shown, with or without --debug."""
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": SHAPES[shape]}
    store = ("--endpoint-url", "http://127.0.0.1:1", "--patience", "0")
    result = run("jobs", "s3://lake/flights/", "--debug", *store, **keys)
    assert result.exit_code == ExitCode.DID_NOT_HAPPEN
    assert "session token" in result.stderr
    assert leaks(shown(result.output, result.stderr), SHAPES[shape]) == []
