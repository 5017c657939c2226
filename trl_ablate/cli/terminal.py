"""What a script says on the terminal: plain tables, no boxes, lines to copy. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from trl_ablate.run.untrusted import SafeConsole

if TYPE_CHECKING:
    from trl_ablate.recipe.resolving import Resolved
    from trl_ablate.run.directory import RunDirectory
    from trl_ablate.training.doctor import Finding

console = SafeConsole(soft_wrap=True)


def show_recipe(resolved: Resolved, everything: bool) -> None:
    """One line on where it runs; with `everything`, the whole of what the recipe came to."""
    console.print(
        f"{resolved.recipe.name} on profile '{resolved.profile}' ({resolved.profile_reason})"
    )
    for warning in resolved.warnings:
        console.print(f"warning: {warning}")
    if not everything:
        return
    console.print(
        table(
            "what resolves", {key: str(value) for key, value in sorted(resolved.settings.items())}
        )
    )
    declared = {key: f"{old} -> {new}" for key, (old, new) in resolved.changes.items()}
    console.print(table("declared changes from the base", declared or {"none": ""}))
    console.print(table("inert knobs", resolved.inert or {"none": ""}))


def show_findings(findings: list[Finding]) -> int:
    """Show every finding, then the command for each that stops a run."""
    unneeded = {True: "", False: " (not needed)"}
    console.print(
        table("here", {each.what: each.found + unneeded[each.needed] for each in findings})
    )
    missing = [finding for finding in findings if finding.stops]
    for finding in missing:
        console.print(f"missing: {finding.what}; mend it with: {finding.mend}")
    console.print(f"cannot run here: {len(missing)} missing" if missing else "can run here")
    return 1 if missing else 0


def show_end(directory: RunDirectory) -> None:
    """The end of a run: where the reward started, peaked and ended, and what was written where."""
    evaluations = [row for row in directory.metrics() if "eval_reward" in row]
    rows = {"run": str(directory.path), "time": f"{directory.read()['seconds']:.0f} s"}
    if evaluations:
        best = max(evaluations, key=lambda row: row["eval_reward"])
        rows |= {
            "eval reward, first": f"{evaluations[0]['eval_reward']:.3f}",
            "eval reward, best": f"{best['eval_reward']:.3f} at step {best['step']}",
            "eval reward, last": f"{evaluations[-1]['eval_reward']:.3f}"
            f" ± {evaluations[-1]['eval_reward_stderr']:.3f}",
        }
    rows |= {
        "model": str(directory.checkpoint_last),
        "metrics": str(directory.metrics_file),
        "dashboard": "trackio show",
    }
    console.print(table("done", rows))


def table(title: str, rows: dict[str, str]) -> Table:
    made = Table(
        title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0)
    )
    for key, value in rows.items():
        made.add_row(key, value)
    return made
