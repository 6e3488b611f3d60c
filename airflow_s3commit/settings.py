"""The section ``[s3commit]`` of Airflow's configuration, for all DAGs of an installation.

`provider_info` describes every option, with its default; an environment variable such as
``AIRFLOW__S3COMMIT__POKE_INTERVAL`` sets it too. Importing this module reads the values that DAG files need.
Only this module reads Airflow's own options that the package uses.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from airflow_s3commit.airflow_version import conf

if TYPE_CHECKING:
    from airflow.configuration import AirflowConfigParser

SECTION: Final = "s3commit"

#: The default ``aws`` connection of operators, sensors and notifiers.
DEFAULT_CONNECTION: Final[str] = conf.get(SECTION, "aws_conn_id", fallback="aws_default")

#: Seconds between two searches of a sensor or trigger, by default.
DEFAULT_POKE_INTERVAL: Final[float] = conf.getfloat(SECTION, "poke_interval", fallback=60.0)

#: Whether sensors wait in the triggerer by default.
DEFAULT_DEFERRABLE: Final[bool] = conf.getboolean("operators", "default_deferrable", fallback=False)

#: Time without a new upload or record after which a sweep treats a job as dead, by default.
DEFAULT_SWEEP_AGE: Final = timedelta(days=conf.getfloat(SECTION, "sweep_age_days", fallback=7.0))

#: The prefix of the registry of destinations; None if there is no registry.
REGISTRY: Final[str | None] = conf.get(SECTION, "registry", fallback="") or None

#: The ``aws`` connection of the registry.
REGISTRY_CONNECTION: Final[str] = conf.get(SECTION, "registry_conn_id", fallback="") or DEFAULT_CONNECTION


def page_destinations() -> str:
    """Return the option with the destinations of the page in the UI, as it is now; empty if it is not set."""
    return _server().get(SECTION, "destinations", fallback="") or ""


def api_base_url() -> str:
    """Return the URL at which browsers reach Airflow's API server; empty if it is not configured."""
    return _server().get("api", "base_url", fallback="") or ""


def _server() -> AirflowConfigParser:
    """Return the API server's configuration; the SDK's, which DAG files use, lacks its options."""
    from airflow.configuration import conf as server  # noqa: PLC0415 - keeps DAG parsing light

    return server
