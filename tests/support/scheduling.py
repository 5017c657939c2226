"""Which tests of a run go to one worker together."""

from xdist.scheduler import LoadScopeScheduling

COMMANDS = "tests/e2e/"
ONE_BY_ONE = ("test_faults.py", "test_miniature_learns.py", "test_recipes_run.py")
"""Long files of commands whose tests share nothing, or what all workers have."""


class WholeFilesOfCommands(LoadScopeScheduling):
    """Tests of whole commands share what is slow to start, such as a cluster or a finished run:
    each of their files goes to one worker, the large ones first. The others follow one by one, so
    that no worker waits at the end."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        together = file.startswith(COMMANDS) and file.removeprefix(COMMANDS) not in ONE_BY_ONE
        return file if together else nodeid
