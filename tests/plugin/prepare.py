"""Makes an Airflow's database and runs the DAG of this folder once in it, in a process of its own.

Started as ``python -m tests.plugin.prepare DAGS OUTCOME`` with that Airflow's environment; writes the run's
id and state into the file OUTCOME.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from airflow.dag_processing.dagbag import DagBag
from airflow.utils.db import initdb


def main() -> None:
    """Do it."""
    dags, outcome = sys.argv[1:]
    initdb()
    run = DagBag(dags).dags["nightly_flights"].test()
    Path(outcome).write_text(json.dumps({"run_id": run.run_id, "state": str(run.state)}))


if __name__ == "__main__":
    main()
