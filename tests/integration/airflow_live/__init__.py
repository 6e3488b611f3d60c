"""A whole Airflow, driven from outside: every way in which a run can end, and what it leaves behind."""
