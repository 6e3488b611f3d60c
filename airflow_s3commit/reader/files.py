"""File systems: one that opens only a table's unchanged files, and pyarrow's S3 from an `S3Config`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex
from urllib.parse import urlsplit

from pyarrow import fs
from pyarrow.fs import S3FileSystem

from airflow_s3commit.exceptions import DestinationChanged, NoSuchKey
from airflow_s3commit.store.s3.config import AWS_DOMAINS, new_client

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_s3commit.reader.table_files import FilesByPath, TableFile
    from airflow_s3commit.store.s3.config import S3Config


class CommittedFiles(fs.FileSystemHandler):  # type: ignore[misc] # pyarrow has no types
    """A read-only file system handler that checks a file's size when it opens the file.

    Only opening a file goes through Python; reading its bytes does not.

    Args:
        inner: The file system with the files, by paths ``bucket/key``.
        files: What was committed, by path.
        destination: URI of the table.
        stays: Why a dataset of these files cannot be pickled; None if it can.

    """

    def __init__(
        self,
        inner: fs.FileSystem,
        files: FilesByPath,
        destination: str,
        *,
        stays: str | None = None,
    ) -> None:
        self._inner = inner
        self._files = files
        self._destination = destination
        self._stays = stays

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Pickle the handler.

        Raises:
            TypeError: A pickled dataset would read other values.

        """
        if self._stays is not None:
            raise TypeError(self._stays)
        return object.__reduce_ex__(self, protocol)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CommittedFiles) and (
            (self._destination, self._files) == (other._destination, other._files)
            and self._inner.equals(other._inner)
        )

    def __hash__(self) -> int:
        return hash((self._destination, len(self._files)))

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Open a file of the table.

        Raises:
            NoSuchKey: The file is gone.
            DestinationChanged: The file's size differs from the committed one.

        """
        committed = self._files[path]
        try:
            file = self._inner.open_input_file(path)
            size = file.size()
        except FileNotFoundError as error:
            raise NoSuchKey(
                f"s3://{path}, committed by {_committer(committed)}, is gone; {self._advice(committed)}"
            ) from error
        if size != committed.size:
            file.close()
            raise DestinationChanged(
                f"s3://{path} has {size} bytes; {_committer(committed)} committed {committed.size};"
                f" {self._advice(committed)}"
            )
        return file

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """Open a file of the table, exactly as `open_input_file` does."""
        return self.open_input_file(path)

    def _advice(self, committed: TableFile) -> str:
        return (
            "if a later commit has replaced it, open the dataset again, at the newest generation; otherwise"
            f" check the job's files with: s3commit verify {self._destination} {committed.job_id}".rstrip()
        )

    def get_type_name(self) -> str:
        """Return the type name of the inner file system."""
        return str(self._inner.type_name)

    def normalize_path(self, path: str) -> str:
        """Return a path as the inner file system spells it."""
        return str(self._inner.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        """Return type, size and time of files, as the inner file system has them."""
        return list(self._inner.get_file_info(paths))

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        """Refuse to list: the log is the listing."""
        self._refuse(selector)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("a dataset read by the log cannot be listed or changed")

    create_dir = _refuse
    delete_dir = _refuse
    delete_dir_contents = _refuse
    delete_root_dir_contents = _refuse
    delete_file = _refuse
    move = _refuse
    copy_file = _refuse
    open_output_stream = _refuse
    open_append_stream = _refuse


def _committer(committed: TableFile) -> str:
    return f"job {committed.job_id}" if committed.job_id else "another program"


def s3_filesystem(config: S3Config) -> S3FileSystem:
    """Return pyarrow's file system for the store of a config.

    Endpoint and region are those of the protocol's own client, which also reads the environment and the
    profile. Without keys in the config, pyarrow takes credentials from the environment, from the profile in
    ``AWS_PROFILE``, or from the machine's role.

    Raises:
        ValueError: pyarrow does not support the config: it has a profile, or ``verify=False``.
        AccessDenied: The credentials are incomplete.
        StoreRejected: Another part of the config is not usable.

    """
    if config.profile and not config.access_key:
        raise ValueError(
            f"pyarrow cannot use the profile {config.profile} of an S3Config: set AWS_PROFILE, or pass a"
            " filesystem"
        )
    if config.verify is False:
        raise ValueError("pyarrow always checks the store's certificate: set verify to its authority's file")
    client = new_client(config)
    endpoint, region = urlsplit(client.meta.endpoint_url), client.meta.region_name
    client.close()
    is_aws = (endpoint.hostname or "").endswith(AWS_DOMAINS)
    arguments: dict[str, Any] = {"scheme": endpoint.scheme, "region": config.region or region}
    if not is_aws or config.path_style or config.endpoint_url:
        arguments["endpoint_override"] = endpoint.netloc
        virtual = is_aws if config.path_style is None else not config.path_style
        arguments["force_virtual_addressing"] = virtual
    if config.access_key:
        arguments |= {
            "access_key": config.access_key,
            "secret_key": config.secret_key,
            "session_token": config.session_token,
        }
    if isinstance(config.verify, str):
        arguments["tls_ca_file_path"] = config.verify
    return S3FileSystem(**arguments)
