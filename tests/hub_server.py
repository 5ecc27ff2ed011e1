"""A Hugging Face Hub on 127.0.0.1, in memory: enough of its HTTP for huggingface_hub to push, load, and load again.

    with Hub() as hub:
        ... a process with hub.environment(cache_folder) set before it imports any Hugging Face library ...
        hub.repos["model", "me/x"].files()["config.json"].data

Models, datasets and Spaces; branches; private repositories, which need the token; files sent plainly, or as LFS objects
where `lfs` is true and the name ends like one. hf_xet, which would bypass all this, is turned off in `environment`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN, OWNER = "hf_test", "me"
LFS_SUFFIXES = (".safetensors", ".bin", ".parquet", ".pt", ".onnx")


@dataclass(frozen=True)
class File:
    """Content of a file, and whether it came as an LFS object."""

    data: bytes
    lfs: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def oid(self) -> str:
        """Git's name of the content, by which the client sees that a file has not changed."""
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()

    def entry(self, path: str) -> dict[str, Any]:
        found = {"type": "file", "path": path, "size": len(self.data), "oid": self.oid}
        if self.lfs:
            found["lfs"] = {"oid": self.sha256, "size": len(self.data), "pointerSize": 134}
        return found


@dataclass
class Repo:
    """Commits (path -> File) by their names, and branches."""

    private: bool = False
    commits: dict[str, dict[str, File]] = field(default_factory=lambda: {"0" * 40: {}})
    branches: dict[str, str] = field(default_factory=lambda: {"main": "0" * 40})

    def commit(self, branch: str, files: dict[str, File]) -> str:
        name = hashlib.sha1(f"{len(self.commits)} {branch} {sorted(files)}".encode()).hexdigest()
        self.commits[name], self.branches[branch] = files, name
        return name

    def files(self, revision: str = "main") -> dict[str, File]:
        return self.commits[self.branches.get(revision, revision)]


class Refused(Exception):  # noqa: N818 (an answer, not a fault)
    """An HTTP error in the Hub's words."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class Hub(ThreadingHTTPServer):
    """The server; a context manager that runs it in a thread.

    Attributes:
        repos: (type, id) -> Repo.
        log: (method, path, status) of every request.
        busy: ends of paths that it can't answer just now.
    """

    daemon_threads = True

    def __init__(self, lfs: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lfs = lfs
        self.repos: dict[tuple[str, str], Repo] = {}
        self.objects: dict[str, bytes] = {}  # uploaded LFS content
        self.log: list[tuple[str, str, int]] = []
        self.busy: set[str] = set()
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def environment(self, cache: Path, token: str | None = TOKEN, offline: bool = False) -> dict[str, str]:
        """Environment variables of a client with a cache of its own."""
        found = {"HF_ENDPOINT": self.url, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
        found |= {"HF_TOKEN": token} if token else {}
        return found | ({"HF_HUB_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"} if offline else {})

    def sent(self) -> list[str]:
        """What was uploaded or committed so far, one word an event."""
        return [
            "object" if "/_lfs/" in path else "commit"
            for method, path, _ in self.log
            if (method == "PUT" and "/_lfs/" in path) or (method == "POST" and "/commit/" in path)
        ]


class Handler(BaseHTTPRequestHandler):
    """Requests to answers, by ROUTES."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def answer(self) -> None:
        address = urlsplit(self.path)
        self.query = parse_qs(address.query)
        self.content = self.read_content()
        try:
            if address.path.endswith(tuple(self.server.busy)):
                raise Refused(507, "Busy", "come back later")  # 503 the client asks again, for half a minute each
            for method, pattern, function in ROUTES:
                found = re.fullmatch(pattern, address.path)
                if found and self.command in method.split():
                    return function(self, *(None if part is None else unquote(part) for part in found.groups()))
            raise Refused(404, "RouteNotFound", f"no route for {self.command} {self.path}")
        except Refused as refused:
            return self.send(
                {"error": refused.message},
                refused.status,
                {"X-Error-Code": refused.code, "X-Error-Message": refused.message},
            )

    do_GET = do_POST = do_PUT = do_HEAD = answer  # noqa: N815 (http.server's names)

    def read_content(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def send(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        self.server.log.append((self.command, self.path, status))

    # --- who asks for what ---------------------------------------------------------------------------------------

    @property
    def is_owner(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def need_owner(self) -> None:
        if not self.is_owner:
            raise Refused(401, "Unauthorized", "Invalid username or password.")

    def repo(self, kind: str, name: str) -> Repo:
        found = self.server.repos.get((kind, name))
        if found is None or (found.private and not self.is_owner):
            raise Refused(404 if self.is_owner else 401, "RepoNotFound", "Repository not found")
        return found

    def commit_of(self, repo: Repo, revision: str | None) -> str:
        revision = revision or "main"
        name = repo.branches.get(revision, revision)
        if name not in repo.commits:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return name

    # --- accounts and repositories -------------------------------------------------------------------------------

    def whoami(self) -> None:
        self.need_owner()
        auth = {"type": "access_token", "accessToken": {"displayName": "test", "role": "write"}}
        self.send({"type": "user", "id": "1", "name": OWNER, "fullname": OWNER, "orgs": [], "auth": auth})

    def validate_yaml(self) -> None:
        self.send({"errors": [], "warnings": []})

    def create(self) -> None:
        self.need_owner()
        asked = json.loads(self.content)
        kind, name = asked.get("type") or "model", f"{asked.get('organization') or OWNER}/{asked['name']}"
        url = f"{self.server.url}/{'' if kind == 'model' else kind + 's/'}{name}"
        with self.server.lock:
            if (kind, name) in self.server.repos:
                return self.send({"error": "You already created this repo", "url": url}, 409)
            private = asked.get("private") or asked.get("visibility") == "private"
            self.server.repos[kind, name] = Repo(private=bool(private))
        return self.send({"url": url, "name": name, "id": name})

    def branch(self, kind: str, name: str, branch: str) -> None:
        self.need_owner()
        repo = self.repo(kind, name)
        if branch in repo.branches:
            raise Refused(409, "BranchExists", f"Reference already exists: {branch}")
        repo.branches[branch] = repo.branches["main"]
        self.send({})

    def info(self, kind: str, name: str, revision: str | None = None) -> None:
        repo = self.repo(kind, name)
        commit = self.commit_of(repo, revision)
        files = repo.commits[commit]
        card = front_matter(files["README.md"].data.decode()) if "README.md" in files else {}
        self.send(
            {
                "_id": "0" * 24,
                "id": name,
                "modelId": name,
                "author": name.split("/", maxsplit=1)[0],
                "sha": commit,
                "private": repo.private,
                "gated": False,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": card.get("tags", []),
                "pipeline_tag": card.get("pipeline_tag"),
                "library_name": card.get("library_name"),
                "cardData": card,
                "siblings": [{"rfilename": path} for path in sorted(files)],
                "lastModified": "2026-01-01T00:00:00.000Z",
                "createdAt": "2026-01-01T00:00:00.000Z",
            }
        )

    def refs(self, kind: str, name: str) -> None:
        branches = self.repo(kind, name).branches.items()
        found = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": commit} for n, commit in branches]
        self.send({"branches": found, "tags": [], "converts": []})

    def tree(self, kind: str, name: str, revision: str, folder: str | None) -> None:
        repo = self.repo(kind, name)
        files = repo.commits[self.commit_of(repo, revision)]
        inside = f"{folder.strip('/')}/" if folder else ""
        below = {path: file for path, file in files.items() if path.startswith(inside)}
        if inside and not below:
            raise Refused(404, "EntryNotFound", f"{folder} does not exist on {revision}")
        deep = self.query.get("recursive") == ["true"]
        found, folders = [], set()
        for path, file in sorted(below.items()):
            parts = path[len(inside) :].split("/")
            folders |= {inside + "/".join(parts[:i]) for i in range(1, len(parts) if deep else min(2, len(parts)))}
            if deep or len(parts) == 1:
                found.append(file.entry(path))
        heads = [{"type": "directory", "path": path, "size": 0, "oid": "0" * 40} for path in sorted(folders)]
        self.send(heads + found)

    # --- up ------------------------------------------------------------------------------------------------------

    def preupload(self, kind: str, name: str, revision: str) -> None:
        self.need_owner()
        repo = self.repo(kind, name)
        files = repo.commits[self.commit_of(repo, revision)]
        answers = []
        for asked in json.loads(self.content)["files"]:
            path = asked["path"]
            is_lfs = self.server.lfs and path.endswith(LFS_SUFFIXES)
            old = files.get(path)
            oid = None if old is None else old.sha256 if old.lfs else old.oid
            mode = "lfs" if is_lfs else "regular"
            answers.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self.send({"files": answers})

    def lfs_batch(self, _kind: str | None, _name: str) -> None:
        self.need_owner()
        found = []
        for asked in json.loads(self.content)["objects"]:
            here = asked["oid"] in self.server.objects
            upload = {"upload": {"href": f"{self.server.url}/_lfs/{asked['oid']}"}}
            found.append({"oid": asked["oid"], "size": asked["size"]} | ({} if here else {"actions": upload}))
        self.send({"transfer": "basic", "objects": found})

    def lfs_put(self, sha256: str) -> None:
        if hashlib.sha256(self.content).hexdigest() != sha256:
            raise Refused(400, "BadContent", "the content is not what its name says")
        self.server.objects[sha256] = self.content
        self.send({})

    def commit(self, kind: str, name: str, branch: str) -> None:
        self.need_owner()
        repo = self.repo(kind, name)
        files = dict(repo.commits[self.commit_of(repo, branch)])
        for line in self.content.splitlines():
            asked = json.loads(line)
            value = asked["value"]
            if asked["key"] == "file":
                files[value["path"]] = File(base64.b64decode(value["content"]), lfs=False)
            elif asked["key"] == "lfsFile":
                if value["oid"] not in self.server.objects:
                    raise Refused(400, "BadContent", f"no LFS object {value['oid']}")
                files[value["path"]] = File(self.server.objects[value["oid"]], lfs=True)
            elif asked["key"] == "deletedFile":
                files.pop(value["path"], None)
        with self.server.lock:
            made = repo.commit(branch, files)
        url = f"{self.server.url}/{name}/commit/{made}"
        self.send({"success": True, "commitOid": made, "commitUrl": url, "hookOutput": ""})

    # --- down ----------------------------------------------------------------------------------------------------

    def resolve(self, kind: str | None, name: str, revision: str, path: str) -> None:
        repo = self.repo((kind or "models").removesuffix("s"), name)
        commit = self.commit_of(repo, revision)
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        file = repo.commits[commit].get(path)
        if file is None:
            return self.send({"error": "Entry not found"}, 404, headers | {"X-Error-Code": "EntryNotFound"})
        headers["ETag"] = f'"{file.sha256 if file.lfs else file.oid}"'
        if file.lfs:
            headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(file.data))}
        asked = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked and self.command == "GET":
            first, last = int(asked[1]), int(asked[2] or len(file.data) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(file.data)}"
            return self.send(file.data[first : last + 1], 206, headers)
        return self.send(file.data, 200, headers)


def front_matter(readme: str) -> dict[str, Any]:
    """The YAML of a card."""
    import yaml

    found = re.match(r"---\n(.*?)\n---", readme, re.DOTALL)
    return (yaml.safe_load(found[1]) or {}) if found else {}


_REPO = r"/api/(model|dataset|space)s/([^/]+/[^/]+)"
ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/api/whoami-v2", Handler.whoami),
    ("POST", "/api/validate-yaml", Handler.validate_yaml),
    ("POST", "/api/repos/create", Handler.create),
    ("GET", _REPO, Handler.info),
    ("GET", _REPO + "/revision/([^/]+)", Handler.info),
    ("GET", _REPO + "/refs", Handler.refs),
    ("GET", _REPO + "/tree/([^/]+)(?:/(.+))?", Handler.tree),
    ("POST", _REPO + "/branch/([^/]+)", Handler.branch),
    ("POST", _REPO + "/preupload/([^/]+)", Handler.preupload),
    ("POST", _REPO + "/commit/([^/]+)", Handler.commit),
    ("POST", r"/(?:(datasets|spaces)/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch", Handler.lfs_batch),
    ("PUT", "/_lfs/([0-9a-f]{64})", Handler.lfs_put),
    ("GET HEAD", "/(?:(datasets|spaces)/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", Handler.resolve),
]
