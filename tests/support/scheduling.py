"""Which tests of a run go to one worker together."""

from functools import cache

from xdist.scheduler import LoadScopeScheduling

COMMANDS = "tests/e2e/"
ONE_BY_ONE = ("test_resume.py", "test_miniature_learns.py", "test_recipes_run.py")
"""Long files of commands whose tests share nothing, or what all workers have."""


class WholeFilesOfCommands(LoadScopeScheduling):
    """Tests of whole commands share what is slow to start, such as a cluster or a finished run:
    each of their files goes to one worker, the large ones first; in the default run, all files
    whose processes are forked go to one, which alone starts a fork server. The others follow one
    by one, so that no worker waits at the end."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if not file.startswith(COMMANDS) or file.removeprefix(COMMANDS) in ONE_BY_ONE:
            return nodeid
        default = "not slow" in self.config.option.markexpr
        return "forked" if default and self._forks(file) else file

    @cache  # noqa: B019
    def _forks(self, file: str) -> bool:
        return "tests.support.warm import" in (self.config.rootpath / file).read_text("utf-8")
