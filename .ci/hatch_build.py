"""Where readers of the package's page find the rest: the URLs of the repository of the build.

A build by GitHub's workflow names its repository and the tag of the version. Links and pictures of
README lead there, as the package's page has no files beside it, and its commands are those of an
installed package. Elsewhere README stays as it is.
"""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

INSTALLED = {
    "pip install -e . &&": "pip install trl-ablate &&",
    'pip install -e ".[test]" && pytest\n': "",
    "launch scripts/train.py recipes/std_dev_off.yaml   # several GPUs: --config_file "
    "recipes/accelerate/zero3.yaml": "launch -m trl_ablate train std_dev_off   # several GPUs",
}
"""Commands in a checkout, and their counterparts."""
RELATIVE = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)]+)\)")


class Repository(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        name, server = os.environ.get("GITHUB_REPOSITORY"), os.environ.get("GITHUB_SERVER_URL")
        metadata["urls"] = {}
        if name and server:
            home, tag = f"{server}/{name}", f"v{metadata['version']}"
            metadata["urls"] = {
                "Homepage": home,
                "Changelog": f"{home}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{home}/issues",
            }
            text = absolute(text, home, tag)
            for checkout, installed in INSTALLED.items():
                if checkout not in text:
                    raise ValueError(f"README.md has no '{checkout}'; adapt INSTALLED")
                text = text.replace(checkout, installed)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text: str, home: str, tag: str) -> str:
    """The page with links into the repository at this tag; a picture needs its raw file."""

    def linked(found: re.Match) -> str:
        picture, words, path = found.groups()
        kind = "raw" if picture else "blob"
        return f"{picture}{words}({home}/{kind}/{tag}/{path})"

    return RELATIVE.sub(linked, text)
