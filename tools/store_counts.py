#!/usr/bin/env python3
"""Runs the store tests and keeps their counts (kills, damage, races, fault loops) in a benchmark file.

    tools/store_counts.py build/release/tests/stores/scanjit_store_tests \\
        --into docs/benchmarks/h200_runtime.json

A row takes the place of the row of the same "what", or comes last. Without --into the rows are printed.
Exits 1 if a test failed or a count is not zero; the file is then left as it was.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile


def rows_of(program):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "counts")
        result = subprocess.run([program], env={**os.environ, "SCANJIT_COUNTS": path},
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if result.returncode != 0:
            sys.exit(f"store_counts: {program} failed:\n{result.stdout}")
        with open(path, encoding="utf-8") as counts:
            return [json.loads(line) for line in counts]


def put(rows, path):
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    kept = {row["what"]: row for row in document["rows"]}
    kept.update({row["what"]: row for row in rows})
    head = {name: value for name, value in document.items() if name != "rows"}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    body = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in kept.values())
    text = "{\n" + "\n".join(lines) + '\n "rows": [\n' + body + "\n ]\n}\n"
    assert json.loads(text) == {**head, "rows": list(kept.values())}
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="scanjit_store_tests")
    parser.add_argument("--into", metavar="FILE", help="benchmark file to put the rows into")
    arguments = parser.parse_args()
    rows = rows_of(arguments.program)
    for row in rows:
        print(f"{row['value']} failures in {row['trials']} trials: {row['what']}")
    if not rows or not all(row["ok"] for row in rows):
        sys.exit("store_counts: not every count is zero")
    if arguments.into:
        put(rows, arguments.into)


if __name__ == "__main__":
    main()
