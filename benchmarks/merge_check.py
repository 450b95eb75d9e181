"""merge_check: its time against reading the same files, and its peak memory.

Makes a mixture of experts in several shards (bfloat16, random), an adapter for all of it and the
right merge, then runs the check and a plain read of every tensor of both models in processes of
their own. The files are read once beforehand, so that both find them in the page cache: the
comparison is of work, not of the disk. Targets: at most 12 times the time of the plain read (a
rank-32 product alone is 64 floating-point operations for each number of two bytes), and a peak
of at most one shard plus 1 GB. Exit code 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from tinkerlab import cli

TIME_TARGET = 12.0
MEMORY_TARGET = 1.0
HIDDEN, WIDTH, EXPERTS, RANK = 1024, 512, 16, 32
GIGABYTE = 1e9


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parse(argv)
    if arguments.case:
        return _measure(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        shard = _make(folder, arguments.layers)
        size = sum(file.stat().st_size for file in folder.glob("*/model*.safetensors"))
        cli.say(
            f"{size / GIGABYTE:.2f} GB in base and merged model, shards of {shard / 1e6:.0f} MB"
        )
        _child(arguments, "read", folder)
        read = _child(arguments, "read", folder)
        check = _child(arguments, "check", folder)
    rows = [
        {
            "name": f"time to check {size / GIGABYTE:.2f} GB / time to read it (s)",
            "ratio": check["seconds"] / read["seconds"],
            "target": TIME_TARGET,
            "ours": check["seconds"],
            "theirs": read["seconds"],
        },
        {
            "name": "peak memory / one shard plus 1 GB (GB)",
            "ratio": check["peak"] / (shard + GIGABYTE),
            "target": MEMORY_TARGET,
            "ours": check["peak"] / GIGABYTE,
            "theirs": (shard + GIGABYTE) / GIGABYTE,
        },
    ]
    for row in rows:
        row["pass"] = row["ratio"] <= row["target"]
    if arguments.json:
        cli.emit_json({"results": rows, "mb_per_second": size / 1e6 / check["seconds"]})
    else:
        for row in rows:
            print(
                f"{'pass' if row['pass'] else 'MISS'}  {row['ratio']:.2f}x"
                f" (target <= {row['target']})  {row['name']}:"
                f" {row['ours']:.2f} against {row['theirs']:.2f}"
            )
        print(f"      {size / 1e6 / check['seconds']:.0f} MB/s")
    return cli.EXIT_OK if all(row["pass"] for row in rows) else cli.EXIT_FOUND


def _make(folder: Path, layers: int) -> int:
    """Write base, adapter and merged model; return the size of the largest shard in bytes."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    factors, maps = {}, {"base": {}, "merged": {}}
    for name in ("base", "adapter", "merged"):
        (folder / name).mkdir()
    stem = "model.layers.{}.mlp.experts"
    for layer in range(layers):
        tensors: dict[str, dict] = {"base": {}, "merged": {}}
        for leaf, role, out, inner in (
            ("w1", "gate_proj", WIDTH, HIDDEN),
            ("w3", "up_proj", WIDTH, HIDDEN),
            ("w2", "down_proj", HIDDEN, WIDTH),
        ):
            shared_a = leaf != "w2"
            a = torch.randn(1 if shared_a else EXPERTS, RANK, inner, generator=generator)
            b = torch.randn(EXPERTS if shared_a else 1, out, RANK, generator=generator) * 1e-3
            prefix = f"base_model.model.{stem.format(layer)}.{leaf}"
            factors |= {f"{prefix}.lora_A.weight": a, f"{prefix}.lora_B.weight": b}
            for expert in range(EXPERTS):
                weight = torch.randn(out, inner, generator=generator).mul_(0.03).bfloat16()
                mine = a[0 if shared_a else expert], b[expert if shared_a else 0]
                name = f"{stem.format(layer)}.{expert}.{role}.weight"
                tensors["base"][name] = weight
                tensors["merged"][name] = (weight.float() + mine[1] @ mine[0]).bfloat16()
        if layer == 0:
            table = torch.randn(32_000, HIDDEN, generator=generator).bfloat16()
            for model in tensors.values():
                model["model.embed_tokens.weight"] = table
        file = f"model-{layer + 1:05d}-of-{layers:05d}.safetensors"
        for model, part in tensors.items():
            save_file(part, str(folder / model / file), metadata={"format": "pt"})
            maps[model] |= dict.fromkeys(part, file)
    save_file(factors, str(folder / "adapter" / "adapter_model.safetensors"))
    (folder / "adapter/adapter_config.json").write_text(json.dumps({"r": RANK, "lora_alpha": RANK}))
    for model, where in maps.items():
        index = {"metadata": {}, "weight_map": where}
        (folder / model / "model.safetensors.index.json").write_text(json.dumps(index))
        (folder / model / "config.json").write_text('{"model_type": "qwen3_moe"}')
    return max(file.stat().st_size for file in folder.glob("base/model*.safetensors"))


def _measure(arguments: argparse.Namespace) -> int:
    """In a child: read or check, then print seconds and peak resident memory in bytes."""
    import torch
    from safetensors import safe_open

    from tinkerlab.diagnosis.merges.check import check_merge

    torch.set_num_threads(1)
    folder = Path(arguments.folder)
    start = time.perf_counter()
    if arguments.case == "read":
        for file in sorted(folder.glob("*/model*.safetensors")):
            with safe_open(str(file), framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 (not a mapping)
                    opened.get_tensor(name).clone()  # touches every page
    else:
        found = check_merge(
            folder / "base", folder / "adapter", folder / "merged", lambda message: None
        )
        if found.findings:
            raise AssertionError(found.findings)
    seconds = time.perf_counter() - start
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(json.dumps({"seconds": seconds, "peak": peak}), flush=True)
    return cli.EXIT_OK


def _child(arguments: argparse.Namespace, case: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--case", case, "--folder", str(folder)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    report = json.loads(run.stdout)
    cli.say(f"{case}: {report['seconds']:.2f} s, {report['peak'] / GIGABYTE:.2f} GB")
    return report


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python benchmarks/merge_check.py --layers 8",
    )
    parser.add_argument("--layers", type=int, default=8, help="layers, one shard each")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser.parse_args(argv)


if __name__ == "__main__":
    cli.run(main)
