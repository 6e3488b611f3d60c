"""Tests of the Airflow door."""
