"""A stand-in for the Hugging Face hub on the loopback interface: repositories that hold small files in memory."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import safetensors.torch
from huggingface_hub import constants

COMMIT = "0" * 40


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories, self.private, self.tokens = {}, set(), set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.tokens.add(self.headers.get("Authorization"))
        if self.path == "/api/repos/create":
            return self.create(json.loads(body))
        if self.path == "/api/validate-yaml":
            return self.reply(200, {"errors": [], "warnings": []})
        if found := re.match(r"/api/models/(.+)/preupload/main", self.path):
            files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
            return self.reply(200, {"files": [file | {"shouldIgnore": False} for file in files]})
        if found := re.match(r"/api/models/(.+)/commit/main", self.path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.repositories[found[1]][line["value"]["path"]] = content
            url = f"{self.server.url}/{found[1]}/commit/{COMMIT}"
            return self.reply(200, {"success": True, "commitUrl": url, "commitOid": COMMIT})
        return self.reply(404, {"error": self.path})

    def create(self, wanted):
        name = "/".join(part for part in (wanted.get("organization"), wanted["name"]) if part)
        if name.startswith("forbidden/"):
            return self.reply(403, {"error": "you may not write here"})
        self.server.repositories.setdefault(name, {})
        if wanted.get("private") or wanted.get("visibility") == "private":
            self.server.private.add(name)
        return self.reply(200, {"url": f"{self.server.url}/{name}", "name": name})

    def do_GET(self):
        path = self.path.partition("?")[0]
        if found := re.match(r"/api/models/(.+?)/(?:revision|tree)/", path):
            files = self.server.repositories.get(found[1])
            if files is None:
                return self.reply(404, {"error": "no such repository"}, X_Error_Code="RepoNotFound")
            if "/tree/" in path:
                return self.reply(
                    200, [{"type": "file", "path": n, "size": len(c), "oid": digest(c)} for n, c in files.items()]
                )
            siblings = [{"rfilename": name} for name in files]
            return self.reply(200, {"id": found[1], "sha": COMMIT, "private": False, "siblings": siblings})
        if found := re.match(r"/(.+?)/resolve/[^/]+/(.+)", path):
            content = self.server.repositories.get(found[1], {}).get(found[2])
            if content is None:
                return self.reply(404, b"", X_Error_Code="EntryNotFound")
            return self.reply(200, content, ETag=f'"{digest(content)}"', X_Repo_Commit=COMMIT)
        return self.reply(404, {"error": path})

    do_HEAD = do_GET


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that this process uses in place of the public one, with an empty cache."""
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.url)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    yield server
    server.shutdown()
    server.server_close()


def serve_deit_tiny(server):
    """Publish random weights under the name of DeiT-Tiny's."""
    import timm

    state = timm.create_model("deit_tiny_patch16_224").state_dict()
    server.repositories["timm/deit_tiny_patch16_224.fb_in1k"] = {"model.safetensors": safetensors.torch.save(state)}


def digest(content):
    return hashlib.sha1(content).hexdigest()
