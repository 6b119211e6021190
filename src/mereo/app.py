"""A page on this machine that shows the prediction of trained networks for an image and its explanation.

Gradio makes the page. It is served on 127.0.0.1 only, and only to requests that carry the token of the printed address,
as Jupyter's are, so that other users of the machine and other web sites do not get in.
"""

import asyncio
import errno
import os
import secrets
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2.functional import to_pil_image

from mereo.data import Batch, Images, load_split
from mereo.data.layout_options import LayoutOptions
from mereo.errors import MereoError, UsageError, first_line
from mereo.explain.folder import KINDS, write_explanations
from mereo.explain.folder import why_not as kinds_missing
from mereo.inference.evaluate import prepare_batch
from mereo.inference.predict import class_names, predict, read_images, task_of
from mereo.measure.trained_models import choose_data, is_own, run_config
from mereo.models import Network, VisionModel, load
from mereo.tasks.mask_pictures import draw_masks
from mereo.tasks.pictures import draw_images

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when Gradio is imported
ADDRESS = "127.0.0.1"
LARGEST = 32 * 2**20
"""Bytes of an upload."""
AT_ONCE = 4
"""Uploads that are read at a time; others wait unread."""
WAITING = 256
"""Most requests that wait for the one being answered; further ones are refused."""
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data: blob:; font-src 'self' data:; frame-ancestors 'none'; form-action 'none'"
)
"""The page loads nothing from elsewhere."""
TITLES = {
    "picture": "parts hidden, votes, couplings", "gradients": "input gradients", "attention": "attention",
    "trees": "parse tree", "sweeps": "pose sweeps", "masks": "class of each pixel", "nearest": "nearest test images",
}  # fmt: skip
OWN = {"segmentation": "masks", "embedding": "nearest"}
"""Tasks whose prediction is itself a picture."""
SHARES = {"multilabel": "labels", "segmentation": "shares of pixels"}
"""Titles of shares that are not of classes."""
GALLERY, FOUND = 256, 6
"""Test images of an embedding that are searched, and the nearest ones that are shown."""

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Answer(NamedTuple):
    """What is shown for an image.

    Attributes:
        shares: numbers from 0 to 1 by name, such as the probabilities of classes, or their scores; None without any.
        picture: of an explanation, or the prediction itself.
        text: the numbers of a regression.
    """

    shares: dict[str, float] | None
    picture: Image.Image
    text: str


def why_not_shown(model: Network) -> str | None:
    """Why a network cannot be shown; None for one that can."""
    if not isinstance(model, VisionModel):
        return f"reads {model.input_kind}, and the page shows images"
    task = task_of(model)
    if task.scores_classes and not model.num_classes:
        return "has no classes"
    return None if task.answers_each else f"is of the task {task.name}, which the page does not show"


class Networks:
    """The networks of the page, loaded when they are chosen.

    Args:
        sources: weight files, run folders or names of bundled weights.
        device: of PyTorch.
        data: data set of the example images; when None, the one that each network was trained on.
        data_root: folder of the data sets.
    """

    def __init__(self, sources: Sequence[Path], device: Any, data: str | None, data_root: str | None) -> None:
        self.sources, self.device, self.data, self.data_root = list(map(str, sources)), device, data, data_root
        self.model, self._tests = lru_cache(maxsize=4)(self._load), lru_cache(maxsize=4)(self._load_tests)
        self._gallery = lru_cache(maxsize=4)(self._embed_tests)

    def _load(self, source: str) -> VisionModel:
        if source not in self.sources:
            raise UsageError(f"network is {source!r}, which is not one of the page.")
        model = load(Path(source), self.device)
        if (reason := why_not_shown(model)) is not None:
            raise UsageError(f"network is {source!r}, which {reason}; choose another.")
        return model

    def kinds(self, source: str) -> list[str]:
        """The explanations that a network gives; of a segmentation and an embedding the prediction itself."""
        model = self.model(source)
        if (own := OWN.get(task_of(model).name)) is not None:
            return [own]
        missing = kinds_missing(model)
        return [kind for kind in KINDS if kind in TITLES and kind not in missing]

    def _load_tests(self, source: str) -> Images:
        model, config = self.model(source), run_config(Path(source))
        root = self.data_root or (config.data_root if config else None)
        height, width = model.image_shape[1:]
        how: dict[str, Any] = {"img_size": (height, width), "in_chans": model.image_shape[0], "download": False}
        task = task_of(model)
        try:
            data = choose_data([model], [config], self.data)
            layout = config.layout if config is not None and is_own(config, data, root) else LayoutOptions()
            options = task.read_as(layout)
            return load_split(data, "test", root=root, unseen=task.unseen_classes, options=options, **how)
        except (MereoError, UsageError, OSError):
            return load_split("digits", "test", **how)

    def example(self, source: str, number: int) -> Any:
        """A test image of a network, or a digit of the package where those are not on this machine."""
        images = self._tests(source)
        return to_pil_image(images.batch(torch.tensor([number % len(images)])).images[0])

    def answer(self, source: str, path: str, kind: str) -> Answer:
        """The prediction for an image file, and the picture of an explanation."""
        model, kinds = self.model(source), self.kinds(source)
        kind = kind if kind in kinds else kinds[0]
        (found,) = predict(model, [Path(path)], top=max(model.num_classes, 1), strict=True)
        _, images = read_images([Path(path)], model, strict=True)
        images = images.to(next(model.parameters()).device)
        numbers = {name: value for name, value in found.values.items() if isinstance(value, float)}
        shares = next((dict(found.values[n]) for n in ("probabilities", "scores", "shares") if n in found.values), None)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "picture.png"
            if kind == "masks":
                masks = {"predicted": self._outputs(model, images).argmax(1)}
                draw_masks(images, masks, class_names(model), file, columns=1, width=4)
            elif kind == "nearest":
                self._draw_nearest(source, images, file)
            else:
                (file,) = write_explanations(model, [(["image"], images)], folder, kinds=[kind])[kind]
            with Image.open(file) as drawn:
                return Answer(
                    shares, drawn.copy(), "\n".join(f"{name}: {value:.4g}" for name, value in numbers.items())
                )

    @staticmethod
    @torch.inference_mode()
    def _outputs(model: VisionModel, images: Tensor) -> Tensor:
        """What the task makes of images in [0, 1]."""
        outputs: Tensor = task_of(model).apply(model, prepare_batch(Batch(images), model.pretrained_cfg))
        return outputs

    def _embed_tests(self, source: str) -> tuple[Tensor, Tensor]:
        """Some test images of a network and their vectors."""
        model, images = self.model(source), self._tests(source)
        batch = images.batch(torch.arange(min(GALLERY, len(images))), device=next(model.parameters()).device)
        return batch.images, self._outputs(model, batch.images)

    def _draw_nearest(self, source: str, image: Tensor, path: Path) -> None:
        """Draw an image beside the test images of the most similar vectors."""
        images, vectors = self._gallery(source)
        similar, places = (vectors @ self._outputs(self.model(source), image)[0]).topk(min(FOUND, len(vectors)))
        titles = ["image", *(f"{value:.2f}" for value in similar.tolist())]
        draw_images(torch.cat([image, images[places]]).cpu(), titles, path, columns=len(titles))


def make_page(networks: Networks) -> Any:
    """The page as Gradio's blocks."""
    import gradio as gr

    def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            try:
                return function(*given)
            except (MereoError, UsageError, OSError) as error:
                raise gr.Error(first_line(error), print_exception=False) from error

        return call

    def choose(source: str, number: float) -> tuple[Any, ...]:
        kinds, task = networks.kinds(source), task_of(networks.model(source))
        choices = [(TITLES[kind], kind) for kind in kinds]
        shares = gr.Label(label=SHARES.get(task.name, "classes"), visible=task.scores_classes or task.name in SHARES)
        return (
            gr.Dropdown(choices=choices, value=kinds[0], visible=len(kinds) > 1), example(source, number), shares,
            gr.Textbox(visible=task.name == "regression"),
            gr.Image(label="prediction" if kinds[0] in OWN.values() else "explanation"),
        )  # fmt: skip

    def example(source: str, number: float) -> Any:
        return networks.example(source, max(int(number or 0), 0))

    def answer(source: str, path: str | None, kind: str) -> tuple[Any, ...]:
        return (None, None, "") if path is None else networks.answer(source, path, kind)

    with gr.Blocks(title="mereo", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        with gr.Row():
            with gr.Column():
                source = gr.Dropdown(networks.sources, value=networks.sources[0], label="network")
                number = gr.Number(0, label="test image", precision=0, minimum=0)
                image = gr.Image(
                    type="filepath", image_mode=None, sources=["upload", "clipboard"], format="png", label="image"
                )
            with gr.Column():
                scores = gr.Label(num_top_classes=5, label="classes")
                numbers = gr.Textbox(label="numbers", visible=False, interactive=False)
                kind = gr.Dropdown([(title, kind) for kind, title in TITLES.items()], label="explanation")
        drawn = gr.Image(label="explanation", interactive=False, format="png")
        seen = [source, image, kind]
        for event in (page.load, source.change):
            event(guarded(choose), [source, number], [kind, image, scores, numbers, drawn])
        number.change(guarded(example), [source, number], image)
        gr.on([image.change, kind.change], guarded(answer), seen, [scores, drawn, numbers], api_name="answer")
    return page.queue(max_size=WAITING, default_concurrency_limit=1, api_open=False)


class Guard:
    """ASGI middleware that serves only requests with the token, none of too many bytes, and no other origin's content.

    `/?token=...` sets the token as a cookie and leads to the page.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], token: str, cookie: str) -> None:
        self.app, self.token, self.cookie = app, token, cookie
        self.uploads = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse, RedirectResponse, Response

        request, reply = Request(scope), Response()
        size = request.headers.get("content-length", "0")
        if scope["path"] == "/" and self._valid(request.query_params.get("token")):
            reply = RedirectResponse("/", 303)
            reply.set_cookie(self.cookie, self.token, httponly=True, samesite="lax")
        elif not self._valid(request.cookies.get(self.cookie)):
            reply = PlainTextResponse("open the address that `mereo app` printed, with its token\n", 403)
        elif not size.isdecimal() or int(size) > LARGEST + 2**16:
            reply = PlainTextResponse(f"an upload has at most {LARGEST:,} bytes\n", 413)
        else:

            async def send_with_policy(message: MutableMapping[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], (b"content-security-policy", POLICY.encode())]
                await send(message)

            async with self.uploads if scope["path"].endswith("/upload") else nullcontext():
                await self.app(scope, receive, send_with_policy)
            return
        await reply(scope, receive, send)

    def _valid(self, given: str | None) -> bool:
        return secrets.compare_digest((given or "").encode(), self.token.encode())


def make_app(networks: Networks, token: str, port: int) -> Any:
    """The page as a guarded ASGI application."""
    import gradio as gr
    from fastapi import FastAPI

    app = gr.mount_gradio_app(
        FastAPI(docs_url=None, redoc_url=None, openapi_url=None), make_page(networks), "/", server_name=ADDRESS,
        server_port=port, footer_links=[], run_history=False, show_error=True, max_file_size=LARGEST, ssr_mode=False,
        enable_monitoring=False,
        theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
    )  # fmt: skip
    return Guard(app, token, f"mereo-{port}")


@contextmanager
def bound(port: int) -> Iterator[socket.socket]:
    """A socket that listens on a port of this machine only; 0 chooses a free port."""
    if not 0 <= port <= 65535:
        raise UsageError(f"port is {port}; it must be from 0 to 65535, where 0 chooses a free one.")
    with socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((ADDRESS, port))
        except OSError as error:
            why = {errno.EADDRINUSE: "is in use", errno.EACCES: "needs rights that you do not have"}
            raise UsageError(
                f"port is {port}, which {why.get(error.errno or 0, str(error))}; give another, or 0."
            ) from error
        opened.listen(128)
        yield opened


def serve(networks: Networks, port: int, ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; `ready` is called with the address, which has the token."""
    import uvicorn

    with bound(port) as opened, tempfile.TemporaryDirectory(prefix="mereo-app-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder  # uploads; by default all users of the machine share a folder
        number, token = opened.getsockname()[1], secrets.token_urlsafe(24)
        app = make_app(networks, token, number)
        ready(f"http://{ADDRESS}:{number}/?token={token}")
        how: dict[str, Any] = {"log_level": "critical", "access_log": False, "timeout_graceful_shutdown": 2}
        with suppress(KeyboardInterrupt):  # uvicorn raises it again after a graceful shutdown
            uvicorn.Server(uvicorn.Config(app, ws="none", proxy_headers=False, **how)).run(sockets=[opened])
