"""Forms that only the page itself can have shown: a signed token, and a request from the same origin.

Airflow's session is a cookie, which a browser adds to every request. ``SameSite=Lax`` keeps it off other
sites' forms, but not off those of a neighbour below the same domain. So a form carries a token that is
signed with the API server's key for this user, this step and this job, and is good for an hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from itsdangerous import BadSignature, URLSafeTimedSerializer

__all__ = ["FORM_SECONDS", "FormTokens", "comes_from_here"]

#: How long a form may be left open.
FORM_SECONDS: Final = 3600

_SALT = "airflow-s3commit.form"


class FormTokens:
    """Signs and checks the tokens of forms.

    Args:
        secret: The key that all API servers of an Airflow share.

    """

    def __init__(self, secret: str) -> None:
        self._serializer = URLSafeTimedSerializer(secret, salt=_SALT)

    def sign(self, user: str, step: str, destination: str, job_id: str) -> str:
        """Return the token of a form that this user is shown."""
        return self._serializer.dumps([user, step, destination, job_id])

    def holds(self, token: str, user: str, step: str, destination: str, job_id: str) -> bool:
        """Tell whether a token was signed for exactly this, within the hour."""
        try:
            signed = self._serializer.loads(token, max_age=FORM_SECONDS)
        except BadSignature:
            return False
        return bool(signed == [user, step, destination, job_id])


def comes_from_here(headers: Mapping[str, str], base_url: str) -> bool:
    """Tell whether a request was sent by a page of this very server.

    Args:
        headers: The request's headers.
        base_url: Where Airflow is told it is served; behind a proxy the request's host is another.

    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = urlsplit(headers.get("origin", "")).netloc
    return bool(origin) and origin in {headers.get("host", ""), urlsplit(base_url).netloc}
