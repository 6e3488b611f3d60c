"""Read-only views of jobs: summaries, details, history, verification and audits."""
