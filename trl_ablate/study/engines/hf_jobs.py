"""Hugging Face Jobs: every run is a job, which continues when the runner has exited.

A private dataset repository of the namespace, `trl-ablate-runs`, carries what a job needs and what
it has made: `RUN/CALL/bundle.tar.gz` has the code, the recipe and its files, and the job uploads
the run's folder beside it when the run has ended. In the job, this module is the program:
`python -m trl_ablate.study.engines.hf_jobs JOB REPO FOLDER`, where JOB is the unpacked archive.
"""

import io
import os
import pickle
import random
import re
import shlex
import sys
import tarfile
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, errors, get_token
from huggingface_hub.utils import disable_progress_bars

from trl_ablate.errors import ConfigurationError
from trl_ablate.named_code import one_line
from trl_ablate.study.engines import shipping
from trl_ablate.study.engines.shipping import Bundle, DetachedEngine
from trl_ablate.study.planned import Plan

OF_THE_HUB = (errors.HTTPError, errors.HFValidationError, errors.OfflineModeIsEnabled)
REPO_TYPE = "dataset"
BUNDLE, ENDED, CODE = "bundle.tar.gz", "ended", "code"
ON_GPU, ON_CPU = "a10g-large", "cpu-upgrade"
PASSING = (408, 429, 500, 502, 503, 504)
"""Status codes of temporary failures."""
FORBIDDEN = (401, 403)
"""Status codes of a token that does not count; the job may go on."""
CONFLICTS = (409, 412)
"""Status codes of a repository that takes another commit."""
WAITS = [5.0 * 2**i for i in range(10)]
"""Seconds before a commit is tried again, 85 minutes in all for a result, which would be lost: all
jobs share a repository, which takes one commit at a time, and so many an hour."""
OVER = ("COMPLETED", "CANCELED", "ERROR", "DELETED")
UNPACK = f"""
import os, sys, tarfile
from huggingface_hub import hf_hub_download
repo, folder = os.environ["TRL_ABLATE_REPO"], os.environ["TRL_ABLATE_FOLDER"]
file = hf_hub_download(repo, f"{{folder}}/{BUNDLE}", repo_type="{REPO_TYPE}")
os.makedirs("job", exist_ok=True)
checked = {{"filter": "data"}} if hasattr(tarfile, "data_filter") else {{}}
tarfile.open(file).extractall("job", **checked)
os.environ["PYTHONPATH"] = os.path.abspath("job/{CODE}")
words = [sys.executable, "-m", "trl_ablate.study.engines.hf_jobs", "job", repo, folder]
os.execv(sys.executable, words)
"""


def install() -> list[str]:
    """The command that installs what the package needs, in the job."""
    return ["python", "-m", "pip", "install", "--quiet", *shipping.requirements("vllm")]


class JobsEngine(DetachedEngine):
    """The Hub's API of jobs; `--namespace` pays, or the owner of the token."""

    name = "hf_jobs"

    def __init__(self, options: Namespace, plan: Plan):
        super().__init__(options, plan)
        self.slots = options.jobs or self.slots
        if not re.fullmatch(r"\d+(\.\d+)?[smhd]?", options.timeout):
            raise ConfigurationError(
                f"--timeout is '{options.timeout[:80]}'; give a number and s, m, h or d, such as "
                "90m"
            )
        for name in options.secrets:
            if name not in os.environ:
                raise ConfigurationError(
                    f"--secrets {name[:80]}: there is no such environment variable; set it, or "
                    "leave it out"
                )
        self._token, self._namespace = get_token(), options.namespace
        if not self._token:
            raise ConfigurationError(
                "--engine hf_jobs: there is no Hugging Face token; run `hf auth login`, or set "
                "HF_TOKEN"
            )
        self._asked = {
            "flavor": options.flavor or (ON_GPU if plan.for_gpu else ON_CPU),
            "timeout": options.timeout,
            "image": options.image,
            "secrets": {"HF_TOKEN": self._token}
            | {name: os.environ[name] for name in options.secrets},
        }
        self._api = HfApi(token=self._token, library_name="trl-ablate")

    def spawn(self, bundle: Bundle, folder: str) -> str:
        try:
            repo = self._made_repo()
            patiently(
                self._api.upload_file, 6, path_or_fileobj=packed(bundle), repo_id=repo,
                repo_type=REPO_TYPE, path_in_repo=f"{folder}/{BUNDLE}",
            )  # fmt: skip
            boot = shlex.join(["python", "-c", UNPACK])
            job = self._api.run_job(
                command=["bash", "-c", f"{shlex.join(install())} && exec {boot}"],
                env={"TRL_ABLATE_REPO": repo, "TRL_ABLATE_FOLDER": folder},
                namespace=repo.split("/")[0], **self._asked,
            )  # fmt: skip
        except (*OF_THE_HUB, ValueError) as error:
            raise ConfigurationError(
                f"--engine hf_jobs: the Hub does not start the job ({one_line(error)}); "
                "check --namespace, --flavor and --timeout, the token's rights, and the network"
            ) from error
        return f"{repo.split('/')[0]}/{job.id}"

    @cache  # noqa: B019
    def _made_repo(self) -> str:
        repo = _repo_of(self._namespace or self._api.whoami()["name"])
        self._api.create_repo(repo, repo_type=REPO_TYPE, private=True, exist_ok=True)
        return repo

    def answer(self, call: str) -> int | None:
        """The code that the job has uploaded; a job that ended without one has failed. While the
        Hub cannot be asked, nothing is known."""
        namespace, job_id = call.split("/")
        try:
            job = self._api.inspect_job(job_id=job_id, namespace=namespace)
            stage = next((name for name in OVER if name == job.status.stage), None)
            if stage is None:
                return None
            file = f"{(job.environment or {})['TRL_ABLATE_FOLDER']}/{ENDED}"
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    found = self._api.hf_hub_download(
                        _repo_of(namespace), file, repo_type=REPO_TYPE, local_dir=scratch
                    )
                except errors.RemoteEntryNotFoundError:
                    reason = job.status.message or "no reason is given"
                    raise RuntimeError(
                        f"job {call} ended as {stage}: {reason}; its log is at {job.url}"
                    ) from None
                return int(Path(found).read_text())
        except Exception as error:
            if self.is_passing(error):
                return None
            if _status(error) in FORBIDDEN:
                raise ConfigurationError(
                    f"--engine hf_jobs: the Hub does not show job {call} ({one_line(error)}); "
                    "check the token and its rights, then fetch the run"
                ) from error
            raise

    def is_passing(self, error: Exception) -> bool:
        if isinstance(error, errors.HfHubHTTPError):
            return _status(error) in PASSING
        unreachable = errors.HTTPError, errors.LocalEntryNotFoundError
        return isinstance(error, unreachable) or super().is_passing(error)

    def download(self, call: str, folder: str, target: Path) -> None:
        disable_progress_bars()
        heavy = [] if self.checkpoints else [f"{folder}/*/checkpoint*/*"]
        self._api.snapshot_download(
            _repo_of(call.split("/")[0]), repo_type=REPO_TYPE, local_dir=target,
            allow_patterns=f"{folder}/*", ignore_patterns=[f"{folder}/{BUNDLE}", *heavy],
        )  # fmt: skip


make = JobsEngine


def _repo_of(namespace: str) -> str:
    return f"{namespace}/trl-ablate-runs"


def packed(bundle: Bundle) -> bytes:
    """The code and the bundle as one archive."""
    content = io.BytesIO()
    with tempfile.TemporaryDirectory() as scratch:
        shipping.copy_code(Path(scratch) / CODE)
        (Path(scratch) / "bundle").write_bytes(pickle.dumps(bundle))
        with tarfile.open(fileobj=content, mode="w:gz") as tar:
            tar.add(scratch, ".")
    return content.getvalue()


def patiently(commit: Callable[..., Any], tries: int, **keywords: Any) -> None:
    """Commit, again while the Hub is busy or cannot be reached."""
    for seconds in WAITS[: tries - 1]:
        try:
            return commit(**keywords)
        except errors.HTTPError as error:
            if _status(error) not in (None, *PASSING, *CONFLICTS):
                raise
        time.sleep(seconds * random.uniform(0.5, 1))
    commit(**keywords)


def _status(error: Exception) -> int | None:
    return error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None


def do_job(job: Path, repo: str, folder: str) -> int:
    """In the job: do the run of the bundle, then upload its folder."""
    bundle = pickle.loads((job / "bundle").read_bytes())
    home, code = (job / name for name in ("results", CODE))
    with shipping.working(bundle, home, code=code, cwd=code) as process:
        exit_code = process.wait()
    (home / ENDED).write_text(str(exit_code))
    patiently(
        HfApi().upload_folder, len(WAITS) + 1, repo_id=repo, repo_type=REPO_TYPE, folder_path=home,
        path_in_repo=folder, ignore_patterns=[f"{bundle.name}.bundle/**", "**/checkpoint-*/**"],
    )  # fmt: skip
    return exit_code


if __name__ == "__main__":
    sys.exit(do_job(Path(sys.argv[1]).resolve(), *sys.argv[2:]))
