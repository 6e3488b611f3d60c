"""Tests of the whole way through, with real programs."""
