"""Read-only views of jobs: summaries, details, timelines, previews, verification and audits."""
