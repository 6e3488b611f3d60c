"""Everything that only looks: jobs, details, timelines, previews, verification, audit."""
