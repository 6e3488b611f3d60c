"""The steps of a job, a file each: setup, seal, plan, commit, roll-back, abort, recover."""
