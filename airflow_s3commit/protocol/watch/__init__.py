"""Waiting for a manifest, without Airflow: shared by the sensor and the triggers."""
