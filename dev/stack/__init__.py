"""``make stack`` and ``make stack-docker``: the services of ``docker/``, on loopback or in containers."""
