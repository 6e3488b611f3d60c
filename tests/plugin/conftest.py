"""An Airflow home for these tests, made before Airflow is imported."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

# Airflow reads these when it is first imported, which the test modules do.
if "AIRFLOW_HOME" not in os.environ:
    _HOME = tempfile.TemporaryDirectory(prefix="s3commit-airflow-")
    os.environ["AIRFLOW_HOME"] = _HOME.name
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(Path(_HOME.name) / "dags")

os.environ.setdefault("AIRFLOW__API_AUTH__JWT_SECRET", secrets.token_hex(64))
