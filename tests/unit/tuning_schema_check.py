"""Applies configs/schema/*.json: every file of configs/ and the golden tuned file must pass, and every
damaged copy of the golden file must not. Needs python3-jsonschema; says "skipped: ..." without it."""

import copy
import json
import pathlib
import sys

try:
    import jsonschema
except ImportError:
    print("skipped: this Python has no jsonschema (Debian: python3-jsonschema)")
    sys.exit(0)


def objects_of(value, path=()):
    """Every object inside a JSON value, with the path to it."""
    if isinstance(value, dict):
        yield path
        for name, member in value.items():
            yield from objects_of(member, path + (name,))
    elif isinstance(value, list):
        for index, element in enumerate(value):
            yield from objects_of(element, path + (index,))


def at(value, path):
    for step in path:
        value = value[step]
    return value


def damaged_copies(golden):
    """The golden file with one member missing, of a wrong type, or one too many."""
    for path in objects_of(golden):
        for name in at(golden, path):
            if path + (name,) != ("checksum",):
                gone = copy.deepcopy(golden)
                del at(gone, path)[name]
                yield f"{path} without {name}", gone
            wrong = copy.deepcopy(golden)
            at(wrong, path)[name] = {"no": "such thing"}
            yield f"{path} with an object as {name}", wrong
        more = copy.deepcopy(golden)
        at(more, path)["unknown"] = 1
        yield f"{path} with an unknown member", more


def main(root):
    configs = root / "configs"
    validators = {}
    for name in ("tuned", "shapes", "model", "shortlists"):
        schema = json.loads((configs / "schema" / f"{name}.schema.json").read_text())
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft7Validator)
        kind.check_schema(schema)
        validators[name] = kind(schema)

    failures = []
    checked = 0
    golden_path = root / "tests" / "unit" / "tuning_golden_v1.json"
    files = [(path, "tuned") for path in [*sorted(configs.glob("*.json")), golden_path]]
    files += [(path, "shapes") for path in sorted((configs / "shapes").glob("*.json"))]
    files += [(path, "model") for path in sorted((configs / "models").glob("*.json"))]
    files += [(configs / "shortlists.json", "shortlists")]
    for path, name in files:
        document = json.loads(path.read_text())
        if name == "tuned" and not str(document.get("schema", "")).startswith("scanjit-tuned/"):
            continue
        checked += 1
        failures += [f"{path}: {error.json_path}: {error.message}" for error in validators[name].iter_errors(document)]

    damaged = 0
    for what, document in damaged_copies(json.loads(golden_path.read_text())):
        damaged += 1
        if validators["tuned"].is_valid(document):
            failures.append(f"the schema accepts the golden file: {what}")

    for failure in failures:
        print(failure)
    print(f"{checked} files checked, {damaged} damaged copies, {len(failures)} failures")
    return 1 if failures or checked < 10 or damaged < 100 else 0


sys.exit(main(pathlib.Path(sys.argv[1])))
