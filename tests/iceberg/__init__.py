"""Tests of the publication to Iceberg catalogs."""
