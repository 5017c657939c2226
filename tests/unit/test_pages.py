"""Every Markdown page: its links, paths, names and commands exist in this repository.

Each check is a function that returns the errors in a text, so that tests with broken texts show
that it finds them.
"""

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from trl_ablate.recipe.places import SHIPPED

COMMANDS = (
    "train", "evaluate", "study", "publish", "bench", "doctor", "recipes", "check", "new",
    "findings", "inspect", "leverage", "mechanism", "plan", "xray",
)  # fmt: skip
STUDY_COMMANDS = ("plan", "run", "status", "fetch", "restore", "report", "clean")
BENCH_MODES = ("train", "eval", "reward", "step", "scale", "xray", "rollout", "gpu")
OPTIONS_WITH_VALUES = ("--config_file", "--nproc-per-node", "--num_processes", "--profile")
"""Options that a page gives before a recipe."""

RECIPES = {path.stem for path in SHIPPED.glob("*.yaml")}
STUDIES = {path.parent.name for path in SHIPPED.glob("studies/*/study.yaml")}
PAGES = sorted(
    [*REPOSITORY.glob("*.md")]
    + [page for room in ("recipes", "trl_ablate") for page in (REPOSITORY / room).rglob("*.md")]
)
WRITTEN = [page for page in PAGES if page.name != "REPORT.md"]  # reports are generated
UNPLAIN = r"\b(said|told|mend|mends|nobody|comes to|foreseen|foreseeable)\b"

FENCED = re.compile(r"^(`{3,})[^\n]*\n(.*?)^\1$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def anchors(text: str) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(text: str, folder: Path) -> list[str]:
    prose = FENCED.sub("", text)
    broken = []
    for link in re.findall(r"(?<!\\)\]\(([^)\s]+)\)", prose):
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        file = folder / target
        if not file.exists() or (
            anchor and anchor not in anchors(linked(file) if target else text)
        ):
            broken.append(link)
    return broken


def linked(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def missing_paths(text: str) -> list[str]:
    """Paths from the repository's root; a word in capitals is a placeholder."""
    found = re.findall(r"(?<![\w/.-])(?:trl_ablate|tests|scripts|recipes|\.ci)/[\w./-]*[\w/]", text)
    return [path for path in found if not has_blank(path) and not (REPOSITORY / path).exists()]


def has_blank(path: str) -> bool:
    return any(len(part) > 1 and part.isupper() for part in re.split(r"[/.]", path))


def unknown_names(text: str) -> list[str]:
    dotted = re.findall(r"\btrl_ablate(?:\.\w+)+", text)
    for module, names in re.findall(r"\bfrom (trl_ablate[.\w]*) import (\w+(?:, \w+)*)", text):
        dotted += [f"{module}.{name}" for name in names.split(", ")]
    for names in re.findall(r"\btrl_ablate\.\{([^}]+)\}", text):
        dotted += [f"trl_ablate.{name.strip()}" for name in names.split(",")]
    return [name for name in dotted if not is_importable(name)]


def is_importable(dotted: str) -> bool:
    parent, _, name = dotted.rpartition(".")
    try:
        return name in vars(import_module(parent)) or bool(import_module(dotted))
    except ModuleNotFoundError:
        return name in getattr(import_module(parent), "__all__", ())


def commands(text: str) -> Iterator[str]:
    """The commands in code blocks, one per line, and in code within the text."""
    for _, block in FENCED.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            yield from (part.strip() for part in line.split("&&"))
    for span in re.findall(r"`([^`]+)`", FENCED.sub("", text)):
        yield " ".join(span.split())


def wrong_commands(text: str) -> list[str]:
    """Commands of this project with a command, script, recipe or study that does not exist."""
    starts = r"(trl-ablate|accelerate launch|torchrun|python3?) "
    found = [command for command in commands(text) if re.match(starts, command)]
    return [command for command in found if not is_right(command)]


def is_right(command: str) -> bool:
    words = shlex.split(command, comments=True)
    if words[0] == "trl-ablate":
        return are_right(words[1:])
    words = [word for i, word in enumerate(words) if words[i - 1] not in OPTIONS_WITH_VALUES]
    if "-m" in words:
        module, *rest = words[words.index("-m") + 1 :]
        return module == "venv" or (module == "trl_ablate" and (not rest or are_right(rest)))
    scripts = [i for i, word in enumerate(words) if word.endswith(".py")]
    if not scripts:
        return words[0] in ("accelerate", "torchrun")  # a command without arguments
    script = words[scripts[0]]
    return (REPOSITORY / script).exists() and are_right(
        [Path(script).stem, *words[scripts[0] + 1 :]]
    )


def are_right(words: list[str]) -> bool:
    """Whether the words after `trl-ablate` are a command with arguments that it accepts."""
    if "|" in words:  # a list of the commands
        return all(word in (*COMMANDS, "|") for word in words)
    command, *rest = words
    if command in ("study", "bench") and rest:
        allowed = STUDY_COMMANDS if command == "study" else (*BENCH_MODES, "MODE")
        kind = STUDIES if command == "study" else {"--"}
        return rest[0] in allowed and (command == "bench" or is_there(rest[1:2], kind))
    takes_recipe = command in ("train", "doctor")
    return command in COMMANDS and (not takes_recipe or is_there(rest[:1], RECIPES))


def is_there(given: list[str], shipped: set[str]) -> bool:
    """Whether a given recipe or study exists; a placeholder, an option and what `new` writes are
    accepted."""
    return all(
        word.startswith(("my_task/", "my_world/"))
        or word.isupper()
        or word.startswith("--")
        or (REPOSITORY / word).exists()
        or word in shipped
        for word in given
    )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_about_this_repository(page):
    text = page.read_text(encoding="utf-8")
    assert not broken_links(text, page.parent)
    assert not missing_paths(text)
    assert not unknown_names(text)


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_commands_and_words(page):
    text = page.read_text(encoding="utf-8")
    assert not wrong_commands(text)
    assert not re.findall(UNPLAIN, text)


def test_the_pages_are_found_and_show_commands():
    assert {"README.md", "recipes/README.md", "trl_ablate/guard/README.md"} <= set(
        map(name_of, PAGES)
    )
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shown = {command.split()[1] for command in commands(text) if command.startswith("trl-ablate ")}
    own_pages = {"bench", "findings", "leverage", "mechanism", "plan", "xray"}
    assert shown == set(COMMANDS) - own_pages


@pytest.mark.parametrize(
    "link", ["gone.md", "README.md#no-such-heading", "#nowhere", "recipes/no_such_recipe.yaml"]
)
def test_a_broken_link_is_found(link):
    assert broken_links(f"# Here\n\n[page](README.md#limits) [x]({link})\n", REPOSITORY)[-1] == link
    assert not broken_links(f"```text\n[x]({link})\n```\n", REPOSITORY)


@pytest.mark.parametrize("path", ["recipes/no_such.yaml", "trl_ablate/trainer.py", "tests/unit/x/"])
def test_a_missing_path_is_found(path):
    assert missing_paths(f"see `recipes/studies/NAME/study.yaml` and `{path}`, ") == [path]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from trl_ablate import AblationConfig, Ablation", "trl_ablate.Ablation"),
        ("`trl_ablate.losses.no_such`", "trl_ablate.losses.no_such"),
        ("`trl_ablate.{load_recipe, save_recipe}`", "trl_ablate.save_recipe"),
        ("`trl_ablate.no_such_room`", "trl_ablate.no_such_room"),
    ],
)
def test_an_unknown_name_is_found(text, name):
    assert unknown_names(text) == [name]


@pytest.mark.parametrize(
    "command",
    [
        "trl-ablate tarin quickstart",
        "trl-ablate train no_such_recipe",
        "trl-ablate train recipes/no_such.yaml",
        "trl-ablate study start std_dev",
        "trl-ablate study run no_such_study",
        "trl-ablate bench speed",
        "trl-ablate train | evalute",
        "python scripts/learn.py recipes/grpo.yaml",
        "accelerate launch --config_file recipes/accelerate/zero3.yaml -m trl_ablate train gpro",
        "accelerate launch -m trl_ablation train grpo",
    ],
)
def test_a_wrong_command_is_found(command):
    right = "pip install -e . && trl-ablate train grpo  # a comment\n"
    assert wrong_commands(f"```bash\n{right}{command}\n```\n`trl-ablate recipes`") == [command]


def test_an_unplain_word_is_found():
    assert re.findall(UNPLAIN, "This is what the recipe comes to.") == ["comes to"]
