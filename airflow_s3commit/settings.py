"""The section ``[s3commit]`` of Airflow's configuration: what an installation sets once for all DAGs.

Every option is described in `provider_info`, with its default; an environment variable such as
``AIRFLOW__S3COMMIT__POKE_INTERVAL`` sets it too. They are read when this module is imported, which DAG files
do.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from airflow.sdk import conf

__all__ = [
    "DEFAULT_CONNECTION",
    "DEFAULT_POKE_INTERVAL",
    "DEFAULT_SWEEP_AGE",
    "SECTION",
    "SIGNING_CONNECTION",
]

SECTION: Final = "s3commit"

#: The ``aws`` connection of every operator, sensor and notifier that names none.
DEFAULT_CONNECTION: Final[str] = conf.get(SECTION, "aws_conn_id", fallback="aws_default")

#: The connection with the key that records are signed with; None if they are not.
SIGNING_CONNECTION: Final[str | None] = conf.get(SECTION, "signing_conn_id", fallback="") or None

#: Seconds between two looks of a sensor or trigger.
DEFAULT_POKE_INTERVAL: Final[float] = conf.getfloat(SECTION, "poke_interval", fallback=60.0)

#: How long a job must have been silent before the sweep takes it for dead.
DEFAULT_SWEEP_AGE: Final = timedelta(days=conf.getfloat(SECTION, "sweep_age_days", fallback=7.0))
