"""Requests to the Hub with bounded waits and retries, and a one-sentence message for each failure.

`huggingface_hub` retries only the upload of large files. It sends every other request once, and
waits forever for a server that stops answering. This module fixes both.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import JSONDecodeError
from typing import TypeVar

from huggingface_hub import constants, get_token, set_client_factory
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
)
from huggingface_hub.utils._http import default_client_factory

from trl_ablate.errors import ConfigurationError, PublishError

ATTEMPTS = 4
FIRST_WAIT = 1.0
"""Seconds before the second attempt, then doubled."""
SILENCE = (60.0, 180.0, 60.0, 60.0)
"""Seconds to connect, without a byte to read, to write, and until a connection is free, after which
a connection counts as dead; large commits take a minute."""
PASSING = {408, 409, 412, 429, 500, 502, 503, 504}
"""Status codes of temporary failures; 409 and 412 mean that another process was committing."""

Result = TypeVar("Result")


def require_token(token: str | None) -> str:
    """The given token, or else the stored one (`HF_TOKEN`, `hf auth login`)."""
    found = token or get_token()
    if not found:
        raise PublishError(
            "there is no Hugging Face token to publish with; run `hf auth login`, or set HF_TOKEN "
            "to a token with write access from https://huggingface.co/settings/tokens"
        )
    return found


def patiently(step: Callable[[], Result]) -> Result:
    for attempt in range(ATTEMPTS - 1):
        try:
            return step()
        except (HTTPError, JSONDecodeError) as error:
            if isinstance(error, HfHubHTTPError) and error.response.status_code not in PASSING:
                raise
            time.sleep(FIRST_WAIT * 2**attempt)
    return step()


@contextmanager
def failures_in_words(repo_id: str) -> Iterator[None]:
    """Turn every failure of an upload into a `PublishError`; time out if the server is silent."""

    def impatient():
        client = default_client_factory()
        client.timeout = SILENCE
        return client

    set_client_factory(impatient)
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise PublishError(
            "HF_HUB_OFFLINE is set, so nothing can be published; unset it and publish again"
        ) from error
    except HFValidationError as error:
        raise PublishError(f"'{repo_id}' is not a valid repository name: {_line(error)}") from error
    except (HTTPError, JSONDecodeError) as error:
        raise PublishError(_sentence(error, repo_id)) from error
    except (RuntimeError, ValueError, OSError) as error:
        if isinstance(error, ConfigurationError):
            raise
        cause = error.__cause__  # an upload's error is wrapped in one that names the file
        why = _sentence(cause, repo_id) if isinstance(cause, HTTPError) else _line(error)
        raise PublishError(why) from error
    finally:
        set_client_factory(default_client_factory)


_BY_STATUS = {
    401: "the Hub does not accept the Hugging Face token; make one with write access at "
    "https://huggingface.co/settings/tokens, then run `hf auth login` or set HF_TOKEN",
    403: "the Hugging Face token may not write to {repo}; use one with write access to it, or give "
    "another --repo_id",
    404: "the Hub has no {repo}, or the token may not read it; check --repo_id",
    429: "the Hub limits the rate of requests; try again in a few minutes",
}


def _sentence(error: Exception, repo_id: str) -> str:
    """What happened, and what to do about it."""
    if isinstance(error, JSONDecodeError):
        return f"{constants.ENDPOINT} answers, but it is not a Hugging Face Hub; check HF_ENDPOINT"
    if not isinstance(error, HfHubHTTPError):
        return (
            f"the connection to {constants.ENDPOINT} failed "
            f"({_line(error) or type(error).__name__}); check the network"
        )
    absent = error.response.headers.get("X-Error-Code") == "RepoNotFound"
    status = 404 if absent else error.response.status_code
    if status in _BY_STATUS:
        return _BY_STATUS[status].format(repo=repo_id)
    if status >= 500:
        return f"the Hub has an internal error (HTTP {status}); try again later"
    return f"the Hub refused {repo_id} (HTTP {status}): {_line(error.server_message or error)}"


def _line(what: object) -> str:
    return " ".join(str(what).split())
