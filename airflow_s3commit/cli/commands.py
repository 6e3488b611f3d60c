"""The names of the commands, for the help of the program and of Airflow's command line."""

from __future__ import annotations

#: The commands by what they are for, in the order of the help. Airflow reads them whenever ``airflow`` runs,
#: so this module imports nothing.
COMMANDS: dict[str, tuple[str, ...]] = {
    "See what is there": ("jobs", "show", "pending", "log", "manifest"),
    "Write a job": ("setup", "put", "seal"),
    "End a job": ("commit", "abort", "recover"),
    "Let other engines read": ("publish",),
    "Check": ("verify", "doctor"),
    "Clean up and mend": ("sweep", "compact", "rollback", "repair", "adopt"),
}
