"""Sweeps: plan the removal of what dead jobs left, as a value, and apply the plan."""
