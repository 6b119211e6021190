"""The server: its files and API; requests of other sites, invalid or too long ones are refused in one line."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from urllib.parse import urlsplit

import pytest
import torch

from mereo.app.guard import HEADERS
from mereo.app.serving import serving
from mereo.app.session import Session
from mereo.cli.main import main
from mereo.models import load
from uploads import picture

pytest.importorskip("uvicorn")
server_module = pytest.importorskip("mereo.app.server", reason="starlette is not installed")


@pytest.fixture(scope="module")
def address(run, other):
    sources = [run, other]
    with serving(Session(sources, [load(source, torch.device("cpu")) for source in sources])) as url:
        yield urlsplit(url).netloc


def send(address, method, path, body=None, headers=None):
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request(method, path, body, {"Host": address, **(headers or {})})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), content


def predict(address, **given):
    status, _, content = send(address, "POST", "/api/predict", json.dumps(given), {"Content-Type": "application/json"})
    return status, json.loads(content)


def test_the_page_and_its_parts_name_no_other_address(address):
    kinds = {"": "text/html", "css": "text/css", "js": "text/javascript"}
    _, _, page = send(address, "GET", "/")
    linked = re.findall(rb'(?:src|href)="(/[^"]*)"', page)
    assert {"/", *(path.decode() for path in linked)} == set(server_module.PARTS)
    for path in server_module.PARTS:
        status, headers, content = send(address, "GET", path)
        assert status == 200 and headers["content-type"].startswith(kinds[path.partition(".")[2]])
        assert b"https:" not in content and b"http:" not in content.replace(b"http://www.w3.org/2000/svg", b"")
        assert all(headers[name] == value for name, value in HEADERS.items())


def test_an_image_is_uploaded_and_answered(address):
    status, _, content = send(address, "POST", "/api/images", picture())
    assert status == 200
    status, prediction = predict(address, **json.loads(content), model=1)
    assert status == 200 and len(prediction["classes"]) == 3
    status, _, content = send(address, "GET", "/api/models")
    assert [each["number"] for each in json.loads(content)] == [0, 1]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"}, {"Host": "evil.example:80"}, {"Host": ""}, {"Origin": "http://evil.example"},
        {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
    ],
)  # fmt: skip
def test_other_sites_are_refused(address, headers):
    for method, path in (("GET", "/"), ("GET", "/api/models"), ("POST", "/api/images")):
        status, answered, content = send(address, method, path, picture() if method == "POST" else None, headers)
        assert status == 403 and content.count(b"\n") == 1 and "access-control-allow-origin" not in answered


def test_another_port_and_a_second_host_are_refused(address):
    host, port = address.split(":")
    assert send(address, "GET", "/", headers={"Host": f"{host}:{int(port) + 1}"})[0] == 403
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(f"GET / HTTP/1.1\r\nHost: {address}\r\nHost: evil\r\nConnection: close\r\n\r\n".encode())
        assert raw.recv(100).split()[1] in (b"403", b"400")
    assert (
        send(address, "GET", "/", headers={"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"})[0] == 200
    )


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/page.js/..%2fserver.py", "//etc/passwd", "/a/../x", "/%00"],
)
def test_requests_open_no_other_files(address, path):
    status, _, content = send(address, "GET", path)
    assert status == 404 and b"root:" not in content and b"import" not in content


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"NaN", b'{"rotate": NaN}', b'{"image": {}}', b"\xff\xfe", b"[" * 50_000,
     b'{"model": 9}', b'{"model": -1}', b'{"model": "0"}', b'{"model": 1e400}', b'{"index": 99999999}',
     b'{"silence": [[NaN, 0]]}'],
)  # fmt: skip
def test_invalid_requests_are_refused_in_one_line(address, body):
    for path in ("/api/predict", "/api/occlusion"):
        status, _, content = send(address, "POST", path, body)
        line = json.loads(content)["error"]
        assert status == 400 and "\n" not in line and "Traceback" not in line


@pytest.mark.parametrize(
    "query", ["model=9", "model=-1", "model=a", "start=1e9&model=0", "model=%00", "model=" + "9" * 30]
)
def test_invalid_query_strings_are_refused_in_one_line(address, query):
    for path in ("/api/test_images", "/api/curves", "/api/errors"):
        status, _, content = send(address, "GET", f"{path}?{query}")
        if path == "/api/test_images" or "start" not in query:
            assert status == 400 and "\n" not in json.loads(content)["error"]


def test_uploads_are_bounded_and_errors_have_one_line(address, monkeypatch):
    for content in (b"", b"no image", picture()[:50], b"\0" * 1000):
        status, _, answered = send(address, "POST", "/api/images", content)
        assert status == 400 and "could not be read as an image" in json.loads(answered)["error"]
    monkeypatch.setattr(server_module, "LONGEST_UPLOAD", 1000)
    status, _, answered = send(address, "POST", "/api/images", b"\0" * 5000)
    assert status == 400 and "longer than 1,000 bytes" in json.loads(answered)["error"]
    status, _, answered = send(address, "POST", "/api/predict", b" " * 70_000)
    assert status == 400 and "longer than" in json.loads(answered)["error"]


def test_an_internal_error_is_reported_and_the_server_continues(address, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("first line\nsecond line")

    monkeypatch.setattr(server_module, "predict_image", fail)
    status, answer = predict(address)
    assert status == 500 and answer["error"] == "failed: ZeroDivisionError: first line"
    monkeypatch.undo()
    assert predict(address)[0] == 200


def test_wrong_methods_and_unknown_paths(address):
    assert send(address, "POST", "/")[0] == 405
    assert send(address, "GET", "/api/predict")[0] == 405
    assert send(address, "GET", "/favicon.ico")[0] == 404


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nothing.safetensors"], "nothing.safetensors"),
        (["mspcaps_tiny.mnist", "--port", "70000"], "port is 70000"),
        (["mspcaps_tiny.mnist", "--port", "-1"], "port is -1"),
        (["mspcaps_tiny.mnist"] * 9, "at most 8"),
        (["mspcaps_tiny.mnist", "--port", "0", "--data", "no_such_data"], "no_such_data"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(capsys, tmp_path, monkeypatch, words, line):
    monkeypatch.chdir(tmp_path)
    assert main(["app", *words]) == 2
    error = capsys.readouterr().err
    assert line in error and error.startswith("mereo: error:") and error.count("\n") == 1


def test_a_port_in_use_and_a_missing_extra_are_reported(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["app", "mspcaps_tiny.mnist", "--port", port]) == 2
    error = capsys.readouterr().err
    assert f"port is {port}, which is in use" in error and error.count("\n") == 1
    monkeypatch.setattr("mereo.export.libraries.is_installed", lambda name: name != "uvicorn")
    assert main(["app", "mspcaps_tiny.mnist"]) == 2
    assert "pip install 'mereo[app]'" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_stops_the_server(python, tmp_path):
    command = [python, "-m", "mereo", "app", "mspcaps_tiny.mnist", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        url = process.stdout.readline().split()[0]
        deadline = time.monotonic() + 30
        while send(urlsplit(url).netloc, "GET", "/api/models")[0] != 200:
            assert time.monotonic() < deadline
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in errors and errors.strip().endswith("stopped.")
