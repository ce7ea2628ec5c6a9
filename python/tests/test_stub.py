"""The type stub and the module have the same names and parameters."""

import ast
import inspect
from pathlib import Path

import rackpool

STUB = Path(rackpool.__file__).with_name("__init__.pyi")

#: What each class has from PyO3 or from Python, and a stub leaves out.
GIVEN = {"__radd__", "__reduce__", "__repr__", "__str__", "__doc__", "__module__", "__ne__"}
#: What a class with buffers has for Python from 3.12 on, and a stub for every version.
BUFFERS = {"__buffer__", "__release_buffer__"}
#: What classes that compare only for equality have from PyO3 as well.
ORDER = {"__lt__", "__le__", "__gt__", "__ge__", "__hash__"}


def parameters(function):
    arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return [argument.arg for argument in arguments if argument.arg not in ("self", "cls")]


def test_the_stub_names_what_the_module_has():
    tree = ast.parse(STUB.read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    assert set(classes) | {"__version__"} == set(rackpool.__all__)
    for name, node in classes.items():
        kind = getattr(rackpool, name)
        if issubclass(kind, Exception):
            continue
        functions = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
        given = GIVEN | BUFFERS | (ORDER if name in ("ObjectInfo", "ObjectStat", "StoreEvent") else set())
        assert set(functions) - BUFFERS == set(vars(kind)) - given, name
        for function in functions.values():
            if function.name in BUFFERS:
                assert name in ("UnsealedObject", "View")
                continue
            found = getattr(kind, function.name)
            if callable(found) and not function.name.startswith("__"):
                expected = [one for one in inspect.signature(found).parameters if one != "self"]
                assert parameters(function) == expected, function.name


def test_the_package_is_marked_as_typed():
    assert STUB.with_name("py.typed").exists()
