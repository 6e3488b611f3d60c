"""Tests of the object store interface."""
