"""In a Hugging Face job: do the run of a bundle, then upload its folder.

`python -m trl_ablate.study.engines.hf_there JOB REPO FOLDER`, where JOB is the unpacked archive.
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any

from trl_ablate.run.directory import RunDirectory
from trl_ablate.study.engines.shipping import Bundle, begin, sign

BUNDLE, ENDED, CODE, REPO_TYPE = "bundle.tar.gz", "ended.json", "code", "dataset"


def describe(bundle: Bundle) -> dict[str, Any]:
    """A bundle as JSON."""
    files = {name: base64.b64encode(data).decode() for name, data in bundle.files.items()}
    return {**vars(bundle), "files": files}


def described(given: dict[str, Any]) -> Bundle:
    files = {name: base64.b64decode(text) for name, text in given["files"].items()}
    return Bundle(given["name"], tuple(given["words"]), files, given["git"],
                  tuple(given["program"]))  # fmt: skip


def main(job: Path, repo: str, folder: str) -> int:
    from huggingface_hub import HfApi

    bundle = described(json.loads((job / "bundle.json").read_text()))
    home, code = (job / name for name in ("results", CODE))
    process = begin(bundle, home, code=code, cwd=code)
    exit_code = process.wait()
    sign(bundle, RunDirectory(home / bundle.name))
    (home / ENDED).write_text(json.dumps({"code": exit_code}))
    HfApi().upload_folder(
        repo_id=repo, repo_type=REPO_TYPE, folder_path=home, path_in_repo=folder,
        ignore_patterns=[f"{bundle.name}.bundle/**", "**/checkpoint-*/**"],
    )  # fmt: skip
    return exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), *sys.argv[2:]))
