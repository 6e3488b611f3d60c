"""A complete Airflow, driven from outside: every way a run can end, and what it leaves behind."""
