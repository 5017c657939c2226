"""`--engine`, and the options of the chosen engine. Every engine module declares its own options.

The help lists the options of all engines. An option of another engine is refused, and the message
names that engine.
"""

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from trl_ablate.cli.parsing import Parser
from trl_ablate.errors import ConfigurationError

ENGINES = ("local", "ray", "modal", "hf_jobs", "slurm")
LOCAL = ENGINES[0]


def add_engine(parser: Parser, words: Sequence[str]) -> None:
    """Add `--engine` and the options of the engine that the words name."""
    parser.add_argument("--engine", choices=ENGINES, default=LOCAL, help="where the runs are done")
    parser.set_defaults(detach=False)
    engine = _named(words)
    if engine in ENGINES:
        _refuse_others(engine, words)
        module = _module(engine)
        own = parser.add_argument_group(f"with --engine {engine}")
        module.add_options(own)
        parser.set_defaults(make_engine=module.make)
    others = [_help(name) for name in ENGINES if name != engine]
    parser.epilog = "\n\n".join([*filter(None, others), parser.epilog or ""])


def _module(engine: str) -> Any:
    return import_module(f"trl_ablate.study.engines.{engine}")


def _named(words: Sequence[str]) -> str:
    """The name of the engine, which decides how the other words are parsed."""
    chosen = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    chosen.add_argument("--engine", default=LOCAL)
    try:
        return chosen.parse_known_args(words)[0].engine
    except argparse.ArgumentError:  # the name is missing; the full parser refuses that
        return LOCAL


def _refuse_others(engine: str, words: Sequence[str]) -> None:
    options = {name: _options(name) for name in ENGINES}
    for word in words:
        option = word.partition("=")[0]
        suitable = [name for name in ENGINES if option in options[name]]
        if suitable and engine not in suitable:
            raise ConfigurationError(
                f"{option} does not apply to --engine {engine}; use it with --engine "
                f"{' or '.join(suitable)}"
            )


def _options(engine: str) -> list[str]:
    return _parser_of(engine).options()


def _help(engine: str) -> str:
    return _parser_of(engine).format_help().strip("\n") if _options(engine) else ""


def _parser_of(engine: str) -> Parser:
    parser = Parser(exit_codes=None, add_help=False, usage=argparse.SUPPRESS)
    _module(engine).add_options(parser.add_argument_group(f"with --engine {engine}"))
    return parser
