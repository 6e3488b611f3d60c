"""The Compose stack of ``docker/`` on loopback, without Docker: ``make stack``."""
