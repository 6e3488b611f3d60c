"""The section ``[s3commit]`` of Airflow's configuration: what an installation sets once for all DAGs.

`provider_info` describes every option, with its default; an environment variable such as
``AIRFLOW__S3COMMIT__POKE_INTERVAL`` sets it too. Values that DAG files need are read when this module is
imported. Airflow's own options that the package uses are read here too, and nowhere else.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from airflow.sdk import conf

if TYPE_CHECKING:
    from airflow.configuration import AirflowConfigParser

__all__ = [
    "DEFAULT_CONNECTION",
    "DEFAULT_DEFERRABLE",
    "DEFAULT_POKE_INTERVAL",
    "DEFAULT_SWEEP_AGE",
    "SECTION",
    "SIGNING_CONNECTION",
    "api_base_url",
    "api_secret_key",
    "page_destinations",
]

SECTION: Final = "s3commit"

#: The ``aws`` connection of every operator, sensor and notifier that names none.
DEFAULT_CONNECTION: Final[str] = conf.get(SECTION, "aws_conn_id", fallback="aws_default")

#: The connection with the key that records are signed with; None if they are not.
SIGNING_CONNECTION: Final[str | None] = conf.get(SECTION, "signing_conn_id", fallback="") or None

#: Seconds between two requests of a sensor or trigger.
DEFAULT_POKE_INTERVAL: Final[float] = conf.getfloat(SECTION, "poke_interval", fallback=60.0)

#: Whether a sensor waits in the triggerer unless it says otherwise.
DEFAULT_DEFERRABLE: Final[bool] = conf.getboolean("operators", "default_deferrable", fallback=False)

#: Time without a sign of life after which the sweep treats a job as dead.
DEFAULT_SWEEP_AGE: Final = timedelta(days=conf.getfloat(SECTION, "sweep_age_days", fallback=7.0))


def page_destinations() -> str:
    """Return the destinations of the page in the UI, as the configuration names them now."""
    return _server().get(SECTION, "destinations", fallback="") or ""


def api_secret_key() -> str:
    """Return the key by which Airflow's API server signs.

    :raises AirflowConfigException: It is not configured.
    """
    return str(_server().get("api", "secret_key"))


def api_base_url() -> str:
    """Return the URL at which browsers reach Airflow's API server; empty if it is not configured."""
    return _server().get("api", "base_url", fallback="") or ""


def _server() -> AirflowConfigParser:
    """Return the configuration as the API server reads it; DAG files need the SDK's alone."""
    from airflow.configuration import conf as server  # noqa: PLC0415 - keeps DAG parsing light

    return server
