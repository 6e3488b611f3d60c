"""pyarrow's S3 file system, pointed where an `S3Config` points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyarrow.fs import S3FileSystem

from airflow_s3commit.store.connection import AWS_DOMAINS, new_client

if TYPE_CHECKING:
    from airflow_s3commit.store.connection import S3Config

__all__ = ["s3_filesystem"]


def s3_filesystem(config: S3Config) -> S3FileSystem:
    """Return a file system for reading from the store that a config names.

    The address and region are those that the protocol's own client uses, from the environment and the
    profile too. Keys that the config does not hold are looked for by pyarrow, in the environment, in the
    profile that ``AWS_PROFILE`` names, and in the role of the machine.

    Raises:
        ValueError: The config asks for what pyarrow cannot do: a profile by name, or a certificate unchecked.
        AccessDenied: The credentials are incomplete.
        StoreRejected: Another part of the config is not usable.

    """
    if config.profile and not config.access_key:
        raise ValueError(
            f"pyarrow takes no profile by name ({config.profile}): set AWS_PROFILE, or give a filesystem"
        )
    if config.verify is False:
        raise ValueError("pyarrow checks the store's certificate always: name its authority in verify")
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
