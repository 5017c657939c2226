"""A Hub on localhost: the routes that `huggingface_hub` and `from_pretrained` need, and faults.

It follows the Hub's rules that matter to a client: content is addressed by hash, an empty commit
and one on a stale parent are refused, a private repository does not exist for strangers. Every
request and every received byte is kept for tests. The routes are at the end.
"""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

TOKEN = "hf_" + "WriteTokenOfTheTester0123456789ab"
LARGE = (".safetensors", ".png")
"""Stored by SHA-256, as the Hub does with binary files; everything else here is a git blob."""


@dataclass
class Fault:
    """The status that requests whose `METHOD /path` matches get, so many times."""

    pattern: str
    status: int
    times: int = 1_000_000


@dataclass
class Repository:
    private: bool = False
    card: dict = field(default_factory=dict)
    commits: dict[str, dict[str, str]] = field(default_factory=dict)
    """Commit -> path -> hash of the content."""
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, tree: dict[str, str]) -> str:
        oid = f"{len(self.commits):040x}"
        self.commits[oid] = tree
        self.branches[branch] = oid
        return oid


class HubEndpoint:
    """`with HubEndpoint(tokens={"hf_...": "owner"}) as hub:` serves at `hub.url`."""

    def __init__(self, tokens: dict[str, str]):
        self.tokens = tokens
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        """Content by SHA-256 (large files) or git's SHA-1 (others)."""
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.received: list[bytes] = []
        """Every received body, and the decoded base64 in it."""
        self.jobs: dict[str, tuple[subprocess.Popen, dict]] = {}
        """Started jobs: the process on this machine, and what the client asked for."""
        self.stages: dict[str, str] = {}
        """Stages of jobs that the Hub has ended, by their id."""
        self.jobs_folder: Path | None = None
        self.lock = threading.Lock()

    def __enter__(self) -> "HubEndpoint":
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        serve = partial(self._server.serve_forever, poll_interval=0.02)  # how long `close` waits
        threading.Thread(target=serve, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def files(self, repo_id: str, branch: str = "main") -> dict[str, bytes]:
        repository = self.repositories[repo_id]
        tree = repository.commits[repository.branches[branch]]
        return {path: self.objects[oid] for path, oid in tree.items()}

    def commits(self, repo_id: str) -> int:
        """Commits made by clients, without the first one, which is made with the repository."""
        return len(self.repositories[repo_id].commits) - 1

    def uploads(self) -> list[str]:
        """Large objects that were sent, one entry for each time."""
        return [line for line in self.requests if line.startswith("PUT /objects/")]

    def create(self, repo_id: str, private: bool, card: dict | None = None) -> None:
        repository = self.repositories[repo_id] = Repository(private, card or {})
        repository.commit("main", {".gitattributes": self.keep(b"*.png filter=lfs\n")})

    def keep(self, content: bytes, *, large: bool = False) -> str:
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content)
        oid = (hashlib.sha256(content) if large else blob).hexdigest()
        self.objects[oid] = content
        return oid

    def fault_for(self, line: str) -> Fault | None:
        with self.lock:
            met = (each for each in self.faults if each.times > 0 and re.search(each.pattern, line))
            if fault := next(met, None):
                fault.times -= 1
            return fault


@contextmanager
def of_the_tester(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[HubEndpoint]:
    """A Hub at which this process's client is pointed, with a token that may write."""
    from huggingface_hub import constants

    with HubEndpoint({TOKEN: "tester"}) as hub:
        url = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "no-token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


class Refusal(Exception):
    def __init__(self, status: int, message: str = "", code: str = ""):
        self.status, self.message, self.code = status, message, code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubEndpoint

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.path = unquote(urlsplit(self.path).path)
        line = f"{self.command} {self.path}"
        self.hub.requests.append(line)
        self.body = self._read_body(int(self.headers.get("Content-Length") or 0))
        self.hub.received.append(self.body)
        if fault := self.hub.fault_for(line):
            self._answer(fault.status, {"error": "made to fail"}, {})
            return
        try:
            self._answer(*self._route(line))
        except Refusal as refusal:
            said = {"X-Error-Message": refusal.message, "X-Error-Code": refusal.code}
            self._answer(refusal.status, {"error": refusal.message}, said)

    do_HEAD = do_POST = do_PUT = do_GET

    def _read_body(self, length: int) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(length)
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _answer(self, status: int, content, headers: dict[str, str]) -> None:
        payload = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(payload)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(payload)

    def _route(self, line: str):
        for pattern, action in _ROUTES:
            if match := re.fullmatch(pattern, line):
                answer = action(self, **match.groupdict())
                return answer if isinstance(answer, tuple) else (200, answer, {})
        raise Refusal(404, f"no such route: {line}", "EntryNotFound")

    def user(self) -> str | None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.hub.tokens:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return self.hub.tokens.get(token)

    def readable(self, repo: str) -> Repository:
        repository, user = self.hub.repositories.get(repo), self.user()
        if repository is None or (repository.private and repo.split("/")[0] != user):
            raise Refusal(404 if user else 401, "Repository not found", "RepoNotFound")
        return repository

    def known(self) -> str:
        if (user := self.user()) is None:
            raise Refusal(401, "Invalid username or password.")
        return user

    def writable(self, place: str) -> None:
        """`place`: an owner, or a repository of one."""
        owner = place.split("/")[0]
        if self.known() != owner:
            raise Refusal(403, f"You don't have the rights to write under {owner}")

    def tree(self, repo: str, revision: str) -> tuple[str, dict[str, str]]:
        repository = self.readable(repo)
        oid = repository.branches.get(revision, revision)
        if oid not in repository.commits:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return oid, repository.commits[oid]


def _whoami(request: _Handler):
    return {"name": request.known(), "type": "user", "orgs": []}


def _create(request: _Handler):
    asked = json.loads(request.body)
    owner = asked.get("organization") or request.known()
    repo = f"{owner}/{asked['name']}"
    request.writable(owner)
    url = {"url": f"{request.hub.url}/{repo}"}
    if repo in request.hub.repositories:
        return 409, {**url, "error": "You already created this model repo"}, {}
    request.hub.create(repo, asked.get("visibility") == "private")
    return url


def _validate(request: _Handler):
    content = json.loads(request.body)["content"]
    yaml.safe_load(content.split("---")[1])
    return {"errors": [], "warnings": []}


def _settings(request: _Handler, repo: str):
    request.writable(repo)
    request.hub.repositories[repo].private = json.loads(request.body)["visibility"] == "private"
    return {}


def _branch(request: _Handler, repo: str, revision: str):
    request.writable(repo)
    repository = request.readable(repo)
    if revision in repository.branches:
        return 409, {"error": "Reference already exists"}, {}
    repository.branches[revision] = repository.branches["main"]
    return {}


def _info(request: _Handler, repo: str, revision: str | None = None):
    repository = request.readable(repo)
    oid, tree = request.tree(repo, revision or "main")
    about = {"private": repository.private, "tags": [], "cardData": repository.card}
    return {"id": repo, "sha": oid, **about, "siblings": [{"rfilename": path} for path in tree]}


def _tree(request: _Handler, repo: str, revision: str, folder: str | None = None):
    _, tree = request.tree(repo, revision)
    inside = {path: oid for path, oid in tree.items() if path.startswith(folder or "")}
    if folder and not inside:
        raise Refusal(404, f"{folder} does not exist", "EntryNotFound")
    entries = []
    for path, oid in inside.items():
        size = len(request.hub.objects[oid])
        entry = {"type": "file", "path": path, "size": size, "oid": oid[:40]}
        large = {"lfs": {"oid": oid, "size": size, "pointerSize": 130}} if len(oid) == 64 else {}
        entries.append(entry | large)
    return entries


def _preupload(request: _Handler, repo: str, revision: str):
    request.writable(repo)
    _, tree = request.tree(repo, revision)
    files = json.loads(request.body)["files"]
    request.hub.received += [base64.b64decode(file["sample"]) for file in files]
    modes = {file["path"]: "lfs" if file["path"].endswith(LARGE) else "regular" for file in files}
    answers = [
        {"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": tree.get(path)}
        for path, mode in modes.items()
    ]
    return {"files": answers}


def _batch(request: _Handler, repo: str):
    request.writable(repo)
    hub, answers = request.hub, []
    for wanted in json.loads(request.body)["objects"]:
        oid, size = wanted["oid"], wanted["size"]
        upload = {"href": f"{hub.url}/objects/{oid}"}
        actions = {} if oid in hub.objects else {"actions": {"upload": upload}}
        answers.append({"oid": oid, "size": size, **actions})
    return {"transfer": "basic", "objects": answers}


def _put(request: _Handler, oid: str):
    if request.hub.keep(request.body, large=True) != oid:
        raise Refusal(400, "the content does not have this hash")
    return 200, b"", {}


def _commit(request: _Handler, repo: str, revision: str):
    request.writable(repo)
    hub, repository = request.hub, request.readable(repo)
    head, tree = request.tree(repo, revision)
    after = dict(tree)
    for line in request.body.splitlines():
        item = json.loads(line)
        key, value = item["key"], item["value"]
        if key == "header" and value.get("parentCommit") not in (None, head):
            raise Refusal(412, "A commit has happened since. Please refresh and try again.")
        if key == "file":
            content = base64.b64decode(value["content"])
            hub.received.append(content)
            after[value["path"]] = hub.keep(content)
        elif key == "lfsFile":
            if value["oid"] not in hub.objects:
                raise Refusal(400, f"{value['path']} was never uploaded")
            after[value["path"]] = value["oid"]
        elif key == "deletedFile":
            del after[value["path"]]
    if after == tree:
        raise Refusal(400, "empty commit")
    oid = repository.commit(revision, after)
    return {"commitUrl": f"{hub.url}/{repo}/commit/{oid}", "commitOid": oid}


def _resolve(request: _Handler, repo: str, revision: str, file: str):
    head, tree = request.tree(repo, revision)
    if file not in tree:
        raise Refusal(404, f"{file} does not exist", "EntryNotFound")
    return 200, request.hub.objects[tree[file]], {"X-Repo-Commit": head, "ETag": f'"{tree[file]}"'}


def _start_job(request: _Handler, namespace: str):
    """A job is a process on this machine, with the variables that the client sends."""
    request.writable(namespace)
    asked, hub = json.loads(request.body), request.hub
    folder = tempfile.mkdtemp(dir=hub.jobs_folder)
    sent = {**asked["environment"], **asked["secrets"], "HF_ENDPOINT": hub.url, "HF_HOME": folder}
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = {**os.environ, **path, **sent, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    job_id = f"job{len(hub.jobs)}"
    command = ["true"] if job_id in hub.stages else asked["command"]
    with Path(folder, "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    hub.jobs[job_id] = (process, asked)
    return _job(request, namespace, job_id)


def _job(request: _Handler, namespace: str, job_id: str):
    request.writable(namespace)
    process, asked = request.hub.jobs[job_id]
    code = process.poll()
    own = "RUNNING" if code is None else "ERROR" if code else "COMPLETED"
    stage = request.hub.stages.get(job_id) or own
    return {key: value for key, value in asked.items() if key != "secrets"} | {
        "id": job_id,
        "createdAt": "2026-01-01T00:00:00.000Z",
        "status": {"stage": stage, "message": f"exit code {code}"},
        "owner": {"id": "1", "name": namespace, "type": "user"},
    }


_REPO = r"(?P<repo>[^/]+/[^/]+)"
_KIND = r"(?:models|datasets)"
_ROUTES: list[tuple[str, Callable]] = [
    (r"GET /api/whoami-v2", _whoami),
    (r"POST /api/repos/create", _create),
    (r"POST /api/validate-yaml", _validate),
    (r"POST /api/jobs/(?P<namespace>[^/]+)", _start_job),
    (r"GET /api/jobs/(?P<namespace>[^/]+)/(?P<job_id>[^/]+)", _job),
    (rf"PUT /api/{_KIND}/{_REPO}/settings", _settings),
    (rf"POST /api/{_KIND}/{_REPO}/branch/(?P<revision>.+)", _branch),
    (rf"POST /api/{_KIND}/{_REPO}/preupload/(?P<revision>.+)", _preupload),
    (rf"POST /api/{_KIND}/{_REPO}/commit/(?P<revision>.+)", _commit),
    (rf"GET /api/{_KIND}/{_REPO}/tree/(?P<revision>[^/]+)(?:/(?P<folder>.+))?", _tree),
    (rf"GET /api/{_KIND}/{_REPO}(?:/revision/(?P<revision>[^/]+))?", _info),
    (r"POST /(?:datasets/)?(?P<repo>[^/]+/[^/]+?)\.git/info/lfs/objects/batch", _batch),
    (r"PUT /objects/(?P<oid>\w+)", _put),
    (rf"(?:GET|HEAD) /(?:datasets/)?{_REPO}/resolve/(?P<revision>[^/]+)/(?P<file>.+)", _resolve),
]
