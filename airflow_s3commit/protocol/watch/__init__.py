"""Waits for manifests, without Airflow; the sensor and the triggers share it."""
