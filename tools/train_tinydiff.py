"""Train TinyDiff on scenes made on the device: python tools/train_tinydiff.py --device cuda --seconds 180 --out FILE.

It stops after the time and writes the averaged weights in half precision, FILE, as `mereo.load` reads them. With
--bf16 products are computed in bfloat16. A step is small, so that --compile default or --compile reduce-overhead may
give more steps on a GPU.
"""

import argparse
import math
import time
from pathlib import Path

import torch

from mereo.data import Batch
from mereo.data.glyph_scenes.scenes import make_scenes
from mereo.models import create_model, save_weights
from mereo.tasks.drawing import DrawingObjective
from mereo.training.averaging import WeightAverage

WARM_UP, CLIP, AT_ONCE = 0.02, 1.0, 8
"""Share of the time in which the rate grows, largest norm of a gradient, steps whose scenes are made together."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--out", type=Path, default=Path("tinydiff.safetensors"))
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--decay", type=float, default=0.9995)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--compile", choices=("default", "reduce-overhead"))
    given = parser.parse_args()
    device = torch.device(given.device)
    torch.manual_seed(given.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = create_model("tinydiff").to(device).train()
    objective = DrawingObjective(model)
    run = torch.compile(objective, mode=given.compile) if given.compile else objective
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=given.lr, betas=(0.9, 0.99), fused=device.type == "cuda")
    average = WeightAverage(model, given.decay)
    start, step, shown = time.perf_counter(), 0, 0.0
    while (passed := (time.perf_counter() - start) / given.seconds) < 1:
        rate = given.lr * min(passed / WARM_UP + 1e-3, 1) * (0.5 + 0.5 * math.cos(math.pi * min(passed, 1)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        if step % AT_ONCE == 0:
            numbers = torch.arange(step * given.batch, (step + AT_ONCE) * given.batch, device=device)
            scenes = make_scenes(numbers, given.seed + 1)
            whole = Batch(images=scenes.images, labels=scenes.kinds, prompts=scenes.tokens)
        first = step % AT_ONCE * given.batch
        batch = whole.pick(slice(first, first + given.batch))
        with torch.autocast(device.type, torch.bfloat16, enabled=given.bf16):
            loss, _ = run(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        average.update(step)
        step += 1
        if passed - shown > 0.05 or step == 1:
            shown = passed
            print(f"{100 * passed:.0f} %, step {step}, loss {loss.item():.4f}, rate {rate:.2e}", flush=True)
    seconds = time.perf_counter() - start
    model.load_state_dict(average.state_dict())
    model.eval().cpu()
    state = {name: x.half() for name, x in model.state_dict().items()}
    facts = {"steps": step, "batch_size": given.batch, "seconds": round(seconds), "device": given.device}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    save_weights(given.out, model, state=state, data="glyph_scenes", training=facts)
    print(f"{step} steps of {given.batch} in {seconds:.0f} s: {given.out}, {given.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
