"""Creates an Airflow database and runs the DAGs of this folder once in it, in a separate process.

Started as ``python -m tests.plugin.prepare DAGS OUTCOME DAG_ID…`` with that Airflow's environment; writes
each run's id and state into the file OUTCOME. Where Airflow has FAB's auth manager, it makes its users too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from airflow.configuration import conf
from airflow.dag_processing.dagbag import DagBag
from airflow.utils.db import initdb

from tests.plugin.live import FAB, FAB_RIGHTS


def main() -> None:
    """Create the database and run the DAGs."""
    dags, outcome, *dag_ids = sys.argv[1:]
    initdb()
    bag = DagBag(dags)
    runs = {dag_id: bag.dags[dag_id].test() for dag_id in dag_ids}
    if conf.get("core", "auth_manager") == FAB:
        make_users()
    told = {dag_id: {"run_id": run.run_id, "state": str(run.state)} for dag_id, run in runs.items()}
    Path(outcome).write_text(json.dumps(told))


def make_users() -> None:
    """Make FAB's users; each one's password is their name."""
    from airflow.providers.fab.auth_manager.cli_commands.utils import (  # noqa: PLC0415 - makes a Flask app
        get_application_builder,
    )

    with get_application_builder() as builder:
        security = builder.sm
        security.sync_roles()
        for name, rights in FAB_RIGHTS.items():
            if isinstance(rights, str):
                role = security.find_role(rights)
            else:
                role = security.add_role(f"role of {name}")
                for action, resource in rights:
                    security.add_permission_to_role(role, security.create_permission(action, resource))
            assert security.add_user(name, name, name, f"{name}@example.org", role, password=name)


if __name__ == "__main__":
    main()
