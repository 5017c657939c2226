"""Requests to the Hub with bounded waits and retries, and a one-sentence message for each failure.

`huggingface_hub` retries only the upload of large files. It sends every other request once, and
waits forever for a server that stops answering. This module fixes both.
"""

import re
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import JSONDecodeError
from typing import TypeVar

from huggingface_hub import constants, get_token, set_client_factory
from huggingface_hub.errors import (
    HfHubHTTPError,
    HTTPError,
    OfflineModeIsEnabled,
    Response,
)
from huggingface_hub.utils import parse_ratelimit_headers
from huggingface_hub.utils._http import default_client_factory

from trl_ablate.errors import ConfigurationError, PublishError
from trl_ablate.run.untrusted import on_one_line

ATTEMPTS = 4
FIRST_WAIT, LONGEST_WAIT = 1.0, 120.0
"""Seconds before the second attempt, then doubled; the longest wait that a server may ask for."""
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
    if not re.fullmatch("[!-~]+", found):
        raise PublishError(
            "the Hugging Face token has a character that no token has, such as a space or a curly "
            "quotation mark; copy it again from https://huggingface.co/settings/tokens"
        )
    return found


def patiently(step: Callable[[], Result]) -> Result:
    """Run a step, and retry it after temporary failures; waits as long as the server asks."""
    for attempt in range(1, ATTEMPTS):
        try:
            return step()
        except (HTTPError, JSONDecodeError) as error:
            wait = _wait_after(error, attempt)
            if wait is None:
                raise
            time.sleep(wait)
    return step()


@contextmanager
def failures_in_words(repo_id: str) -> Iterator[None]:
    """Turn every failure of an upload into a `PublishError`; time out if the server is silent."""
    set_client_factory(_impatient_client)
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise PublishError(
            "HF_HUB_OFFLINE is set, so nothing can be published; unset it and publish again"
        ) from error
    except (HTTPError, JSONDecodeError) as error:
        raise PublishError(_sentence(error, repo_id)) from error
    except (AttributeError, KeyError, TypeError) as error:
        if "huggingface_hub" not in traceback.extract_tb(error.__traceback__)[-1].filename:
            raise
        raise PublishError(no_hub()) from error  # other JSON than the Hub's
    except (RuntimeError, ValueError, OSError) as error:
        if isinstance(error, ConfigurationError):
            raise
        cause = error.__cause__  # an upload's error is wrapped in one that names the file
        why = _sentence(cause, repo_id) if isinstance(cause, HTTPError) else on_one_line(str(error))
        raise PublishError(why) from error
    finally:
        set_client_factory(default_client_factory)


def _impatient_client():
    client = default_client_factory()
    client.timeout = SILENCE
    return client


def _wait_after(error: Exception, attempt: int) -> float | None:
    """Seconds to wait before the next attempt; None if another attempt cannot help."""
    usual = FIRST_WAIT * 2 ** (attempt - 1)
    if not isinstance(error, HfHubHTTPError):
        return usual
    if error.response.status_code not in PASSING:
        return None
    asked = _asked_wait(error.response)
    return usual if asked is None else asked if asked <= LONGEST_WAIT else None


def _asked_wait(response: Response) -> float | None:
    """The wait that the server asks for, in its rate limit headers or in `Retry-After`."""
    limit = parse_ratelimit_headers(response.headers)
    if limit is not None and limit.remaining == 0:
        return limit.reset_in_seconds + 1.0
    asked = response.headers.get("Retry-After", "")
    return float(asked) if asked.isdigit() else None


_BY_STATUS = {
    401: "the Hub does not accept the Hugging Face token; make one with write access at "
    "https://huggingface.co/settings/tokens, then run `hf auth login` or set HF_TOKEN",
    403: "the Hugging Face token may not write to {repo}; use one with write access to it, or give "
    "another --repo_id",
    404: "the Hub has no {repo}, or the token may not read it; check --repo_id",
    429: "the Hub limits the rate of requests; try again {when}",
}


def no_hub() -> str:
    return f"{constants.ENDPOINT} answers, but it is not a Hugging Face Hub; check HF_ENDPOINT"


def _sentence(error: Exception, repo_id: str) -> str:
    """What happened, and what to do about it."""
    if isinstance(error, JSONDecodeError):
        return no_hub()
    if not isinstance(error, HfHubHTTPError):
        return (
            f"the connection to {constants.ENDPOINT} failed "
            f"({on_one_line(str(error)) or type(error).__name__}); check the network"
        )
    status, asked = error.response.status_code, _asked_wait(error.response)
    if error.response.headers.get("X-Error-Code") == "RepoNotFound":
        status = 404
    if status in _BY_STATUS:
        when = "later" if asked is None else f"in {asked:.0f} seconds"
        return _BY_STATUS[status].format(repo=repo_id, when=when)
    if status >= 500:
        return f"the Hub has an internal error (HTTP {status}); try again later"
    why = on_one_line(str(error.server_message or error))
    return f"the Hub refused {repo_id} (HTTP {status}): {why}"
