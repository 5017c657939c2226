"""Which tests of a run go to one worker together."""

from xdist.scheduler import LoadScopeScheduling


class WholeFilesOfCommands(LoadScopeScheduling):
    """Tests of whole commands share what is slow to start, such as a cluster or a finished run:
    each of their files goes to one worker, the large ones first. The others follow one by one, so
    that no worker waits at the end."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file.startswith("tests/e2e/") else nodeid
