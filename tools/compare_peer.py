#!/usr/bin/env python3
"""Times scanjit and fla's Triton kernel side by side on one GPU, on the same shapes, in turn.

    compare_peer.py --scanjit build/release/bin/scanjit --out docs/benchmarks/h200_gated_delta_h.json

The peer is the state-scan kernel of the Python package flash-linear-attention (fla.ops.common.chunk_delta_h),
launched directly, once with each of its autotuner's configs; then the best of them ("fla best of 12"), and the
one that its autotuner settles on after a first call of one short sequence ("probe": BV 32, 2 warps, 4 stages),
take turns with scanjit: ours, best, probe, ours, best, probe, ..., ours. Both sides are CUDA-graph replays of at
least --block-ms on one set of tensors, so the L2 is warm. `scanjit bench OP --serve` is driven over pipes.

A row is won if in every round the peer's block is slower than both neighbouring blocks of ours by more than
twice their drift. Writes "scanjit-bench/1" (docs/benchmarks). Exit status: 0 ok, 1 a shape failed, 2 usage or a
bad shape file, 3 no GPU, no peer or no scanjit.
"""
import argparse
import inspect
import itertools
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

PEER_CONFIGS = [(bv, warps, stages) for bv in (32, 64) for warps in (2, 4) for stages in (2, 3, 4)]
PROBE = (32, 2, 4)
OP = "gated_delta_h"
COUNTS = ("N", "T", "H", "HV", "K", "V", "BT")


def stop(status, message):
    print(f"compare_peer: {message}", file=sys.stderr)
    sys.exit(status)


# --- shapes ---------------------------------------------------------------------------------------------

def load_shapes(path):
    """Shapes of a scanjit-shapes/1 file; a field given as a list stands for each of its values."""
    try:
        document = json.loads(pathlib.Path(path).read_text())
        if document["schema"] != "scanjit-shapes/1":
            raise ValueError(f"its schema is {document['schema']!r}, not scanjit-shapes/1")
        common, entries = document.get("common", {}), document["shapes"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        stop(2, f"cannot read shapes from {path}: {error}")
    shapes = []
    for entry in entries:
        fields = {**common, **entry}
        if fields.get("op", OP) != OP:
            continue
        lists = {name: value for name, value in fields.items() if isinstance(value, list) and name != "optional"}
        for values in itertools.product(*lists.values()):
            shapes.append({**fields, **dict(zip(lists, values))})
    return shapes


def argument(shape):
    """The shape as `scanjit --shape` spells it."""
    words = [f"{name}={shape[name]}" for name in COUNTS if name in shape]
    words += [f"{name}={shape[name]}" for name in ("dtype", "gate") if name in shape]
    if "optional" in shape:
        words.append("optional=" + "+".join(shape["optional"]))
    if shape.get("packed"):
        words.append("packed=true")
    return ",".join(words)


# --- ours -----------------------------------------------------------------------------------------------

class Scanjit:
    """`scanjit bench OP --serve`: a shape is prepared by a line, an empty line is one timed block."""

    def __init__(self, program, block_ms, extra):
        command = [program, "bench", OP, "--serve", "--l2", "warm", "--block-ms", str(block_ms), *extra]
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        except OSError as error:
            stop(3, f"cannot start {program}: {error}")

    def ask(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            stop(3, f"scanjit ended with status {self.process.wait()}; its own words are above")
        answer = json.loads(answer)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def prepare(self, shape):
        return self.ask(argument(shape))

    def block_us(self):
        return self.ask("")["us"]

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)


# --- the peer -------------------------------------------------------------------------------------------

class Peer:
    """fla's kernel without its autotuner: any config on tensors of our own."""

    def __init__(self):
        try:
            import torch
            import triton
            from fla.ops.common import chunk_delta_h
        except Exception as error:  # import chains of these packages raise almost anything
            stop(3, f"the peer cannot be loaded: {error!r}")
        if not torch.cuda.is_available():
            stop(3, "torch sees no GPU")
        self.torch, self.triton = torch, triton
        kernel = chunk_delta_h.chunk_gated_delta_rule_fwd_kernel_h_blockdim64
        while not isinstance(kernel, triton.runtime.JITFunction):
            kernel = kernel.fn
        self.kernel = kernel
        self.parameters = list(kernel.arg_names)
        # Versions differ in whether value blocks and heads share one axis of the grid.
        self.one_axis = "program_id(1)" not in inspect.getsource(kernel.fn)

    def versions(self):
        from importlib import metadata
        found = {"torch": self.torch.__version__, "triton": self.triton.__version__}
        for package in ("flash-linear-attention", "fla-core"):
            try:
                found[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                import fla
                found[package] = getattr(fla, "__version__", "unknown")
        return found

    def tensors(self, shape):
        torch = self.torch
        N, T, H, HV, K, V, BT = (shape[name] for name in COUNTS)
        packed, gate, optional = shape.get("packed", False), shape.get("gate", "g"), set(shape.get("optional", ()))
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[shape.get("dtype", "bf16")]
        B, tokens = (1, N * T) if packed else (N, T)
        chunks = -(-T // BT)
        random = torch.Generator(device="cuda").manual_seed(0)

        def normal(*size):
            return torch.randn(*size, device="cuda", generator=random, dtype=torch.float32)

        def unit(*size):
            return torch.nn.functional.normalize(normal(*size), dim=-1).to(dtype)

        def decay(*columns):  # cumulative inside each chunk
            steps = -0.1 * torch.rand(N, chunks * BT, *columns, device="cuda", generator=random)
            sums = steps.view(N, chunks, BT, *columns).cumsum(2).view(N, chunks * BT, *columns)
            return sums[:, :T].reshape(B, tokens, *columns).contiguous()

        values = {
            "k": unit(B, tokens, H, K), "w": unit(B, tokens, HV, K), "v": normal(B, tokens, HV, V).to(dtype),
            "g": decay(HV) if gate in ("g", "g+gk") else None,
            "gk": decay(HV, K) if gate in ("gk", "g+gk") else None,
            "h0": 0.1 * normal(N, HV, K, V) if "h0" in optional else None,
            "h": torch.empty(N * chunks, HV, K, V, device="cuda", dtype=dtype),  # the peer always stores it
            "ht": torch.empty(N, HV, K, V, device="cuda") if "ht" in optional else None,
            "v_new": torch.empty(B, tokens, HV, V, device="cuda", dtype=dtype) if "v_new" in optional else None,
            "cu_seqlens": torch.arange(0, N * T + 1, T, device="cuda") if packed else None,
            "chunk_offsets": torch.arange(0, N * chunks + 1, chunks, device="cuda") if packed else None,
        }
        values.update(T=tokens, H=H, HV=HV, K=K, V=V, BT=BT, IS_VARLEN=packed, USE_G=values["g"] is not None,
                      USE_GK=values["gk"] is not None, USE_INITIAL_STATE=values["h0"] is not None,
                      STORE_FINAL_STATE=values["ht"] is not None, SAVE_NEW_VALUE=values["v_new"] is not None,
                      USE_EXP2=True, STATE_V_FIRST=False, TRANSPOSE_STATE=False)
        return values

    def launcher(self, shape, values, config):
        bv, warps, stages = config
        blocks = self.triton.cdiv(shape["V"], bv)
        heads = shape["N"] * shape["HV"]
        grid = (blocks * heads,) if self.one_axis else (blocks, heads)
        known = {**values, "BV": bv}
        missing = [name for name in self.parameters if name not in known]
        if missing:
            raise RuntimeError(f"this version's kernel takes {', '.join(missing)}, which this script does not know")
        arguments = {name: known[name] for name in self.parameters}
        return lambda: self.kernel[grid](**arguments, num_warps=warps, num_stages=stages)

    def graph(self, launch, block_ms):
        """Captures launches into a graph, as scanjit does: about half a millisecond of them, at most 64.
        Returns a function that times as many replays as fill a block."""
        torch = self.torch
        stream = torch.cuda.Stream()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

        def capture(repeats):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(repeats):
                    launch()
            graph.replay()
            return graph

        def run_us(graph, replays, repeats):
            start.record(stream)
            for _ in range(replays):
                graph.replay()
            end.record(stream)
            stream.synchronize()
            return 1e3 * start.elapsed_time(end) / (replays * repeats)

        with torch.cuda.stream(stream):
            launch()  # compiles
            stream.synchronize()
            repeats = max(1, min(64, int(500 / max(run_us(capture(1), 1, 1), 0.1))))
            graph = capture(repeats)
            replays = max(1, math.ceil(1e3 * block_ms / (run_us(graph, 1, repeats) * repeats)))

        def block_us():
            with torch.cuda.stream(stream):
                return run_us(graph, replays, repeats)

        return block_us


def warm_up_compiler(shapes, jobs):
    """Compiles the peer's kernels in processes of their own, into Triton's cache on disk: many at once."""
    fields = ("H", "HV", "K", "V", "BT", "dtype", "gate", "optional", "packed")
    kinds = {json.dumps({name: shape.get(name) for name in fields}): shape for shape in shapes}
    kinds = [{**shape, "N": 1, "T": shape["BT"]} for shape in kinds.values()]
    children = []
    for i in range(min(jobs, len(PEER_CONFIGS))):
        work = json.dumps({"shapes": kinds, "configs": PEER_CONFIGS[i::jobs]})
        children.append(subprocess.Popen([sys.executable, __file__, "--warm", work], stdout=subprocess.DEVNULL))
    for child in children:
        child.wait()


def warm(work):
    peer = Peer()
    for shape in work["shapes"]:
        values = peer.tensors(shape)
        for config in work["configs"]:
            try:
                peer.launcher(shape, values, config)()
            except Exception as error:
                print(f"compare_peer: {config} does not compile: {error!r}"[:300], file=sys.stderr)
    peer.torch.cuda.synchronize()


# --- side by side ---------------------------------------------------------------------------------------

def compare(ours, peer, shape, options):
    ready = ours.prepare(shape)
    values = peer.tensors(shape)
    quick, timers = {}, {}
    for config in PEER_CONFIGS:
        try:
            block_us = peer.graph(peer.launcher(shape, values, config), min(1.0, options.block_ms))
            quick[config] = min(block_us(), block_us())
        except Exception as error:
            print(f"compare_peer: fla with BV {config[0]}, {config[1]} warps, {config[2]} stages: {error!r}"[:300], file=sys.stderr)
    if not quick:
        raise RuntimeError("none of the peer's configs ran")
    best = min(quick, key=quick.get)
    for name, config in (("best", best), ("probe", PROBE)):
        if config in quick:
            timers[name] = peer.graph(peer.launcher(shape, values, config), options.block_ms)
    ours.block_us()  # the clock is up on both sides before anything counts
    samples = {name: [] for name in timers}
    mine = []
    for _ in range(options.rounds):
        mine.append(ours.block_us())
        for name, block_us in timers.items():
            samples[name].append(block_us())
    mine.append(ours.block_us())

    us = statistics.median(mine)
    drift = max(abs(a - b) for a, b in zip(mine, mine[1:]))
    won = all(theirs - max(a, b) > 2 * abs(a - b) for theirs, a, b in zip(samples["best"], mine, mine[1:]))
    described = {name: shape[name] for name in (*COUNTS, "dtype") if name in shape}
    described.update({name: shape[name] for name in ("gate", "optional") if name in shape})
    if shape.get("packed"):
        described["packed"] = True

    def side(name, title, config):
        return {"name": title, "config": dict(zip(("BV", "warps", "stages"), config)),
                "us": statistics.median(samples[name]), "samples": [round(value, 3) for value in samples[name]]}

    row = {"op": OP, "shape": described, "class": "default", "gates": "strong", "l2": "warm",
           "kernel_revision": ready["kernel_revision"], "config": ready["config"], "source": ready["source"],
           "us": us, "samples": [round(value, 3) for value in mine], "drift_us": round(drift, 3),
           "peer": side("best", f"fla best of {len(quick)}", best)}
    if "probe" in samples:
        row["probe"] = side("probe", "fla as tuned on its probe", PROBE)
        row["probe_speedup"] = row["probe"]["us"] / us
    row["peer_configs_us"] = {"/".join(map(str, config)): round(value, 2) for config, value in quick.items()}
    row["speedup"] = row["peer"]["us"] / us
    row["won"] = won
    row["floor_us"] = ready["floor_us"]
    if ready["timed_tokens"] != shape["T"]:
        row["timed_tokens"] = ready["timed_tokens"]
    return row, ready["provenance"]


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values)) if values else float("nan")


def print_row(row):
    shape = row["shape"]
    config = "/".join(str(row["config"][name]) for name in ("bv", "bk", "stages", "warps"))
    probe = f"{row['probe']['us']:10.2f} {row['probe_speedup']:6.2f}x" if "probe" in row else " " * 18
    print(f"{shape['HV']:4d} {shape['N']:4d} {shape['T']:6d} {row['us']:10.2f}  {config:<12s} {row['peer']['us']:10.2f} "
          f"{row['speedup']:6.2f}x {'won' if row['won'] else '':<3s} {probe} {row['floor_us']:9.2f} {row['drift_us']:7.2f}", flush=True)


def print_means(rows):
    wide = [row for row in rows if row["shape"]["N"] >= 4]
    for title, some in (("all", rows), ("N >= 4", wide), ("N < 4", [row for row in rows if row not in wide])):
        if not some:
            continue
        probes = [row["probe_speedup"] for row in some if "probe" in row]
        print(f"geometric mean, {title} ({len(some)} shapes): our time / best of fla = {1 / geometric_mean([row['speedup'] for row in some]):.3f}"
              f", speedup over best {geometric_mean([row['speedup'] for row in some]):.3f}x, over probe pick {geometric_mean(probes):.3f}x"
              f", won {sum(row['won'] for row in some)}")


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=str(root / "configs" / "shapes" / "scan_map.json"), metavar="FILE", help="shape file (default: the 69 shapes of scan_map)")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="interleaved rounds of each shape, at least 7 (default: 7)")
    parser.add_argument("--block-ms", type=float, default=5.0, metavar="MS", help="GPU time of one block (default: 5)")
    parser.add_argument("--out", metavar="FILE", help="benchmark file to write; rewritten after each shape")
    parser.add_argument("--scanjit", default=str(root / "build" / "release" / "bin" / "scanjit"), metavar="PATH", help="the scanjit to time")
    parser.add_argument("--scanjit-arg", action="append", default=[], metavar="ARG", help="a further argument of scanjit bench, as --scanjit-arg=--cache-dir=/tmp/c")
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1), metavar="N", help="processes that compile the peer's kernels first (0: none)")
    parser.add_argument("--limit-s", type=float, default=0, metavar="S", help="stop before the first shape after so many seconds; what is done is written (default: no limit)")
    parser.add_argument("--warm", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.warm:
        return warm(json.loads(options.warm))
    if options.rounds < 7:
        stop(2, f"--rounds is {options.rounds}, it must be at least 7")
    shapes = load_shapes(options.shapes)
    begin = time.monotonic()
    ours = Scanjit(options.scanjit, options.block_ms, options.scanjit_arg)
    peer = Peer()
    if options.jobs > 0:
        warm_up_compiler(shapes, options.jobs)
        print(f"compare_peer: the peer's kernels are compiled, {time.monotonic() - begin:.0f} s", file=sys.stderr)
    print("  HV    N      T         us  config       peer best   ratio won  probe pick  ratio  floor us   drift", flush=True)
    rows, failed, head = [], 0, {}
    for i, shape in enumerate(shapes):
        if options.limit_s and time.monotonic() - begin > options.limit_s:
            print(f"compare_peer: {len(shapes) - i} shapes left out, the time is up", file=sys.stderr)
            failed += 1
            break
        try:
            row, provenance = compare(ours, peer, shape, options)
        except RuntimeError as error:
            failed += 1
            print(f"compare_peer: {argument(shape)}: {error}", file=sys.stderr)
            continue
        finally:
            peer.torch.cuda.empty_cache()
        rows.append(row)
        print_row(row)
        head = {"schema": "scanjit-bench/1", **provenance, "command": " ".join(sys.argv), "l2": "warm", "peer_versions": peer.versions()}
        if options.out:
            partial = pathlib.Path(options.out + ".part")
            try:
                partial.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
                partial.replace(options.out)
            except OSError as error:
                stop(3, f"cannot write {options.out}: {error}")
    ours.close()
    print_means(rows)
    print(f"compare_peer: {len(rows)} shapes in {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
