"""The page of `mereo app` as its browser asks for it: token, answers, limits, many requests at once."""

import importlib.util
import io
import json
import secrets
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from PIL import Image

import mereo
from mereo.app import LARGEST, Networks, bound
from mereo.cli.app import _networks_here
from mereo.cli.main import main
from mereo.errors import UsageError

if importlib.util.find_spec("gradio") is None:
    pytest.skip("the page needs Gradio", allow_module_level=True)
httpx = pytest.importorskip("httpx")

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def served(run: Path, other: Path, python: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`mereo app` with two networks in a process of its own, and the address that it prints."""
    command = [python, "-m", "mereo", "app", str(run), str(other), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[0]
        process.terminate()


@pytest.fixture(scope="module")
def address(served: tuple[subprocess.Popen[str], str]) -> str:
    return served[1].partition("/?")[0]


@pytest.fixture
def client(served: tuple[subprocess.Popen[str], str], address: str) -> Iterator[Any]:
    limits = httpx.Limits(max_connections=None)
    with httpx.Client(base_url=address, timeout=120, follow_redirects=True, limits=limits) as client:
        assert client.get(served[1]).status_code == 200
        yield client


def photo(side: int = 16) -> bytes:
    stream = io.BytesIO()
    Image.effect_noise((side, side), 80).convert("RGB").save(stream, "PNG")
    return stream.getvalue()


def upload(client: Any, content: bytes) -> Any:
    return client.post("/gradio_api/upload", files={"files": ("photo.png", content, "image/png")})


def ask(client: Any, data: list[Any]) -> dict[str, Any]:
    """The last message of the event that answers an image."""
    (number,) = (d["id"] for d in client.get("/config").json()["dependencies"] if d["api_name"] == "answer")
    session = secrets.token_hex(6)
    event = {"data": data, "fn_index": number, "session_hash": session}
    client.post("/gradio_api/queue/join", json=event).raise_for_status()
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as lines:
        for line in lines.iter_lines():
            message = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
            if message.get("msg") == "process_completed":
                return dict(message)
    raise AssertionError("no answer")


def given(path: str) -> dict[str, Any]:
    return {"path": path, "orig_name": "photo.png", "meta": {"_type": "gradio.FileData"}}


def test_only_the_token_lets_in(address: str, client: Any) -> None:
    with httpx.Client(base_url=address) as stranger:
        for path in ("/", "/?token=other", "/config", "/gradio_api/info", "/theme.css"):
            assert stranger.get(path).status_code == 403
        assert upload(stranger, photo()).status_code == 403
        stranger.cookies.set(next(iter(client.cookies)), "guess")
        assert stranger.get("/config").status_code == 403
    page = client.get("/")
    assert page.status_code == 200 and "default-src 'self'" in page.headers["content-security-policy"]


def test_an_image_is_answered_as_predict_does(client: Any, run: Path, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(photo())
    (path,) = upload(client, (tmp_path / "photo.png").read_bytes()).json()
    done = ask(client, [str(run), given(path), "picture"])
    assert done["success"], done
    scores, picture, numbers = done["output"]["data"]
    assert numbers == ""
    (expected,) = mereo.predict(mereo.load(run), [tmp_path / "photo.png"], top=100)
    shares = {each["label"]: each["confidence"] for each in scores["confidences"]}
    assert shares == pytest.approx({name: expected.values["probabilities"][name] for name in shares}, abs=1e-5)
    assert Image.open(io.BytesIO(client.get(picture["url"]).content)).width > 300


def test_what_is_wrong_is_an_answer(client: Any, run: Path) -> None:
    (path,) = upload(client, photo()).json()
    assert not ask(client, ["/etc/passwd", given(path), "picture"])["success"]
    (broken,) = upload(client, b"no image").json()
    assert not ask(client, [str(run), given(broken), "picture"])["success"]
    assert not ask(client, [str(run), given("/etc/passwd"), "picture"])["success"]


def test_explanations_that_a_network_lacks_are_hidden(run: Path, other: Path) -> None:
    networks = Networks([run, other], torch.device("cpu"), None, None)
    assert "trees" in networks.kinds(str(run)) and "trees" not in networks.kinds(str(other))
    assert networks.example(str(run), 3).size == (16, 16)
    assert networks.example(str(other), 0).size[0] > 16  # its data is unknown: a digit of the package
    with pytest.raises(UsageError, match="network"):
        networks.model("elsewhere")


@pytest.mark.long
def test_two_hundred_requests_at_once(client: Any, run: Path) -> None:
    (path,) = upload(client, photo()).json()
    with ThreadPoolExecutor(64) as pool:
        pages = list(pool.map(lambda _: client.get("/config").status_code, range(180)))
        answers = list(pool.map(lambda _: ask(client, [str(run), given(path), "picture"])["success"], range(20)))
    assert pages == [200] * 180 and answers == [True] * 20


def test_large_uploads_are_refused_in_bounded_memory(served: tuple[subprocess.Popen[str], str], client: Any) -> None:
    process, content = psutil.Process(served[0].pid), bytes(LARGEST + 2**20)

    def chunks() -> Iterator[bytes]:  # without a length, as a form that is sent in pieces
        yield b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
        for start in range(0, len(content), 2**16):
            yield content[start : start + 2**16]
        yield b"\r\n--x--\r\n"

    kind = {"content-type": "multipart/form-data; boundary=x"}

    def send(number: int) -> int:
        # A server that answers before it has read all may close the connection.
        try:
            return client.post("/gradio_api/upload", content=chunks(), headers=kind).status_code
        except httpx.TransportError:
            return 413

    assert client.post("/gradio_api/upload", content=content, headers=kind).status_code == 413
    before = process.memory_info().rss
    with ThreadPoolExecutor(40) as pool:
        codes = list(pool.map(send, range(40)))
    assert all(400 <= code < 500 for code in codes), codes
    assert process.memory_info().rss - before < 200 * 2**20
    assert client.get("/config").status_code == 200


def test_wrong_use_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with bound(0) as opened:
        port = opened.getsockname()[1]
        for words in (["--port", str(port)], ["--port", "99999"], [str(tmp_path / "none.safetensors")]):
            assert main(["app", *words]) != 0
            assert capsys.readouterr().err.count("mereo: error:") == 1


TARGETS = {"mean": [50.0, -3.0], "std": [7.0, 0.5]}
TASKS: dict[str, tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "multilabel": ("resnet20", {"num_classes": 2, "img_size": 16}, ("cat", "dog"), {}),
    "regression": ("resnet20", {"num_classes": 2, "img_size": 16}, ("age", "height"), {"targets": TARGETS}),
    "embedding": ("embedding_resnet20", {"num_classes": 3, "img_size": 16}, (), {}),
    "segmentation": ("unet_small", {"num_classes": 2, "img_size": 16, "widths": (6, 8)}, ("no", "yes"), {}),
}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_answered_as_predict_does(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    name, arguments, names, known = TASKS[task]
    source = tmp_path / "runs" / task / "weights" / "best.safetensors"
    source.parent.mkdir(parents=True)
    mereo.save_weights(source, mereo.create_model(name, **arguments), class_names=names, task=task, **known)
    (tmp_path / "photo.png").write_bytes(photo())
    networks = Networks([source], torch.device("cpu"), None, None)
    kinds = networks.kinds(str(source))
    assert kinds == {"embedding": ["nearest"], "segmentation": ["masks"]}.get(task, kinds) and kinds
    assert networks.example(str(source), 0).size == (16, 16)
    (expected,) = mereo.predict(source, tmp_path / "photo.png")
    shares, picture, text = networks.answer(str(source), str(tmp_path / "photo.png"), "trees")
    assert picture.width > 300
    if task == "regression":
        assert shares is None
        assert text.splitlines() == [f"{name}: {value:.4g}" for name, value in expected.values.items()]
    else:
        wanted = expected.values.get("probabilities") or expected.values.get("shares")
        assert text == "" and shares == (None if wanted is None else pytest.approx(wanted))
    monkeypatch.chdir(tmp_path)
    assert _networks_here()[0] == Path("runs") / task


def test_what_is_not_shown_is_refused_in_one_line_and_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = Path("runs/text/weights/best.safetensors")
    source.parent.mkdir(parents=True)
    mereo.save_weights(source, mereo.create_model("tnl_tiny", dim=8, depth=1, num_heads=1, context=8), task="language")
    assert main(["app", "runs/text", "--port", "0"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "reads tokens, and the page shows images" in error
    assert Path("runs/text") not in _networks_here()
