"""Runs in an environment with pyagentspec: checks flows of a folder, or writes its own examples there."""

import doctest
import importlib
import json
import pkgutil
import sys
from pathlib import Path

import pyagentspec.flows
from jsonschema import Draft202012Validator
from pyagentspec.flows.flow import Flow
from pyagentspec.llms import VllmConfig
from pyagentspec.serialization import AgentSpecDeserializer, AgentSpecSerializer


def check(folder: Path) -> dict[str, str]:
    """What the published schema and the library say; each flow is written again as `*.again.json`."""
    schema = Draft202012Validator(Flow.model_json_schema(only_core_components=True))
    found = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        found[path.name] = "valid" if schema.is_valid(content) else "not valid"
        component = AgentSpecDeserializer().from_dict(content)
        path.with_suffix(".again.json").write_text(AgentSpecSerializer().to_json(component))
    return found


def examples(folder: Path) -> None:
    """Write the flows that the docstrings of the library make."""
    names = [
        module.name for module in pkgutil.walk_packages(pyagentspec.flows.__path__, "pyagentspec.flows.")
    ]
    for name in sorted(names):
        for case in doctest.DocTestFinder().find(importlib.import_module(name), name):
            space = {"llm_config": VllmConfig(name="llm", model_id="m", url="u")}
            for example in case.examples:
                exec(compile(example.source, name, "single"), space)
            for key, value in space.items():
                if isinstance(value, Flow):
                    (folder / f"{case.name.split('.')[-1]}.{key}.json").write_text(value.to_json())


if __name__ == "__main__":
    if sys.argv[1] == "check":
        print(json.dumps(check(Path(sys.argv[2]))))
    else:
        examples(Path(sys.argv[2]))
