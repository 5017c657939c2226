"""One run, one commit: only files that differ from those on the Hub are uploaded.

After an interruption, only the missing files are sent: the Hub's storage is addressed by content.
The commit comes last and names its parent: it contains everything or does not happen, and a retry
after a lost answer makes no second commit.
"""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HfHubHTTPError

from trl_ablate.errors import PublishError
from trl_ablate.hub.card import Licence, model_card
from trl_ablate.hub.client import failures_in_words, no_hub, patiently, require_token
from trl_ablate.hub.contents import (
    PICTURE,
    FinishedRun,
    Source,
    check_name,
    hub_id,
    is_of_a_run,
    read_run,
)
from trl_ablate.run.directory import RunDirectory

CARD = "README.md"
MINIATURE_LICENCE = {"license": "apache-2.0"}
"""The miniature is made by this package, and has the same licence."""


def push_run(
    run: RunDirectory,
    repo_id: str | None = None,
    private: bool = True,
    token: str | None = None,
    revision: str | None = None,
    show: Callable[[Mapping[str, int]], None] | None = None,
) -> str:
    """Publish a run that has ended; returns the URL of its page.

    Args:
        run: the run's directory. It is not changed.
        repo_id: `OWNER/NAME`, or `NAME` to publish as the token's owner. None: arm and seed.
        private: whether only the owner sees it; then a repository that is public is refused.
        token: None means the stored one.
        revision: branch to publish to, created if it is missing. None: `main`.
        show: is called with path and size of every file before the first upload.
    """
    check_name(repo_id)
    try:
        secret = require_token(token)
    except PublishError:
        read_run(run, None)  # what is wrong with the run is more than a missing token
        raise
    finished = read_run(run, secret)
    files = finished.files()
    if show:
        show(sizes(files))
    try:
        return _publish(finished, files, secret, repo_id, private, revision or None)
    except PublishError as error:
        raise PublishError(
            f"not published: {finished.masker.text(str(error))}. The run in {run.path} is "
            f"unchanged; run `{publish_command(run, repo_id, private, revision)}` to continue"
        ) from error


def publish_command(
    run: RunDirectory, repo_id: str | None, private: bool, revision: str | None
) -> str:
    words = ["trl-ablate", "publish", str(run.path), *["--public"] * (not private)]
    for name, value in {"--repo_id": repo_id, "--revision": revision}.items():
        words += [name, value] if value else []
    return shlex.join(words)


def files_of(run: RunDirectory) -> dict[str, int]:
    """Path and bytes of every file that publishing the run would upload; uses no network."""
    return sizes(read_run(run).files())


def sizes(files: Mapping[str, Source]) -> dict[str, int]:
    """Those of the files, and 0 of the card, whose text depends on what the Hub has."""
    return {
        path: source.stat().st_size if isinstance(source, Path) else len(source)
        for path, source in sorted(files.items())
    } | {CARD: 0}


def check_token(token: str | None = None) -> str:
    """Name of the token's owner, so that a missing or wrong token is found before a long run."""
    with failures_in_words("the repository"):
        match patiently(HfApi(token=require_token(token)).whoami):
            case {"name": str(name)}:
                return name
    raise PublishError(no_hub())


def _publish(
    run: FinishedRun,
    files: dict[str, Source],
    secret: str,
    repo_id: str | None,
    private: bool,
    revision: str | None,
) -> str:
    api, name = HfApi(token=secret), repo_id or run.repository
    name = name if "/" in name else f"{check_token(secret)}/{name}"
    with failures_in_words(name):
        was_private = _open_repository(api, name, private, revision)
        licence = licence_of(run, api)
    card = model_card(run, name, licence, picture=PICTURE in files, branch=revision or "")
    published = {**files, CARD: card.encode()}
    with failures_in_words(name):
        patiently(lambda: _commit(api, name, revision, published, f"Publish {run.name}"))
        if was_private and not private:
            patiently(lambda: api.update_repo_settings(name, private=False))
    return f"{api.endpoint}/{name}" + (f"/tree/{revision}" if revision else "")


def _open_repository(api: HfApi, repo_id: str, private: bool, revision: str | None) -> bool:
    """Create the repository and the branch if they are missing; whether it is private."""
    patiently(lambda: api.create_repo(repo_id, private=private, exist_ok=True))
    is_private = bool(patiently(lambda: api.model_info(repo_id)).private)
    if private and not is_private:
        raise PublishError(
            f"{repo_id} is already public; give --public to publish there anyway, or another "
            "--repo_id"
        )
    if revision is not None:
        patiently(lambda: api.create_branch(repo_id, branch=revision, exist_ok=True))
    return is_private


def licence_of(run: FinishedRun, api: HfApi) -> Licence | None:
    """The base model's licence, from its card on the Hub; None if the card names none."""
    if run.is_miniature:
        return MINIATURE_LICENCE
    name = hub_id(run.base)
    if name is None:
        return None
    try:
        card = patiently(lambda: api.model_info(name)).card_data
    except HfHubHTTPError as error:
        if error.response.status_code not in (401, 403, 404):
            raise
        return None  # this token may not read the model, or it was deleted
    found, keys = card.to_dict() if card else {}, ("license", "license_name", "license_link")
    return {key: found[key] for key in keys if found.get(key)} or None


def _commit(
    api: HfApi, repo_id: str, revision: str | None, files: Mapping[str, Source], title: str
) -> None:
    """Commit what the repository needs to contain `files`; the client leaves out files that the Hub
    has, and makes no commit if it has all."""
    head = api.model_info(repo_id, revision=revision)
    present = [each.rfilename for each in head.siblings or []]
    additions = [CommitOperationAdd(path, source) for path, source in files.items()]
    stale = [path for path in present if path not in files and is_of_a_run(path)]
    deletions = [CommitOperationDelete(path, is_folder=False) for path in stale]
    once = dict(zip(files.values(), additions, strict=True))  # equal files at the root and below it
    api.preupload_lfs_files(
        repo_id, additions=list(once.values()), revision=revision, free_memory=False
    )
    api.create_commit(
        repo_id,
        operations=[*additions, *deletions],
        commit_message=title,
        revision=revision,
        parent_commit=head.sha,
    )
