"""Strict YAML: a file becomes plain data whose every value knows its line.

Duplicate keys, and plain words that YAML quietly turns into something else (`on`, `12:30`, `010`,
dates), are refused. Syntax ends at once; other faults are kept and reported together by
`cluster.yamlfile.validate`. Knows nothing of the models that files are checked against.
"""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from cluster.errors import Fault, SpecError

KeyPath = tuple[str | int, ...]

_CORE = "tag:yaml.org,2002:"
_DECIMAL_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_DECIMAL_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)?\.[0-9]*([eE][-+][0-9]+)?")


_FILE = "what holds a / or ends in .yaml is a file of YAML text"
_FILE_FIX = "name a file that you can read"
LONGEST_LABEL = 80
DEEPEST = 20
_YAML = "files are YAML: key: value, a line each, indented with spaces"
_SET_RULE = "a setting is a key path, an equals sign and a value"
_KEYS = ("a file is a set of keys, each with its value", "write key: value, a line each")
_DEEP = ("nested too deeply", "no key of ours lies deeper than a few levels", "look for brackets")
_NO_TEXT = ("holds bytes that are no text", "all values are UTF-8", "rename what is named so")


@dataclass
class Document:
    """What a file says: `data`, the origin (`file:line`) of each key path, and faults so far."""

    name: str
    data: dict[str, Any]
    origins: dict[KeyPath, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def where(self, path: KeyPath) -> str:
        """`file:line` of the value at `path`, or of the closest key above it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return self.name

    def assign(self, assignment: str) -> "Document":
        """A copy in which one value is replaced: `train.steps=5`, the value read as YAML."""
        if not _is_text(assignment):
            raise SpecError([Fault(f"set {assignment!a}", "", *_NO_TEXT)])
        key, equals, text = assignment.partition("=")
        if not equals or not all(key.strip().split(".")):
            fix = "write key=value, such as train.steps=5"
            seen = f"set {_label(assignment)!r}"
            raise SpecError([Fault(seen, "", "no key=value pair", _SET_RULE, fix)])
        if key.count(".") > DEEPEST:
            raise SpecError([Fault(f"set {_label(assignment)}", "", *_DEEP)])
        value = load_yaml(f"value: {text}", name=f"set {_label(assignment)}")
        changed = self._replaced(key.strip(), value.data.get("value"), value.name)
        changed.faults += [
            replace(fault, where=value.name, key=key.strip()) for fault in value.faults
        ]
        return changed

    def assign_text(self, key: str, text: str, name: str) -> "Document":
        """A copy in which the value at `key` is `text` as it stands, given by option `name`."""
        if not _is_text(text):
            raise SpecError([Fault(f"{name}={text!a}", "", *_NO_TEXT)])
        return self._replaced(key, text, f"{name}={_label(text)}")

    def without(self, key: str) -> "Document":
        """A copy without this key of the outermost level, and all below it."""
        changed = copy.deepcopy(self)
        changed.data.pop(key, None)
        changed.origins = {path: at for path, at in self.origins.items() if path[:1] != (key,)}
        return changed

    def _replaced(self, key: str, value: Any, origin: str) -> "Document":
        path = tuple(key.split("."))
        changed = copy.deepcopy(self)
        changed.origins = {
            known: where for known, where in self.origins.items() if known[: len(path)] != path
        }
        changed.origins[path] = origin
        parent: Any = changed.data
        for depth, part in enumerate(path[:-1]):
            if not isinstance(parent.get(part), dict):
                parent[part] = {}
                changed.origins[path[: depth + 1]] = origin
            parent = parent[part]
        parent[path[-1]] = value
        return changed


def load_yaml(source: Path | str, *, name: str | None = None) -> Document:
    """Reads a file (a Path) or a text (a str). Raises SpecError on broken syntax.

    Other faults stay in the document, so that validation can report all of them at once.
    """
    text = _read(source) if isinstance(source, Path) else source
    document = Document(name or (str(source) if isinstance(source, Path) else "text"), {})
    root = _compose(text, document.name)
    if root is None:
        return document
    document.origins[()] = f"{document.name}:{root.start_mark.line + 1}"
    data = _Builder(document).build(root, ())
    if isinstance(data, dict):
        document.data = data
    elif not document.faults:
        document.faults.append(
            Fault(document.where(()), "", f"{_short(data)} is not a set of keys", *_KEYS)
        )
    return document


def _read(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever
            seen = "a folder" if path.is_dir() else "no ordinary file"
            raise SpecError([Fault(str(path), "", f"cannot be read: {seen}", _FILE, _FILE_FIX)])
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        fix = f"look into {path.absolute().parent}"
        raise SpecError([Fault(str(path), "", "there is no such file", _FILE, fix)]) from exc
    except UnicodeDecodeError as exc:
        seen = f"cannot be read: byte {exc.start} is no text (UTF-8)"
        raise SpecError([Fault(str(path), "", seen, _FILE, _FILE_FIX)]) from exc
    except (OSError, ValueError) as exc:  # ValueError: a name with a zero byte in it
        seen = f"cannot be read: {getattr(exc, 'strerror', None) or exc}"
        raise SpecError([Fault(str(path), "", seen, _FILE, _FILE_FIX)]) from exc


def _compose(text: str, name: str) -> yaml.Node | None:
    try:
        loader = yaml.SafeLoader(text)
        try:
            node: yaml.Node | None = loader.get_single_node()
            return node
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as exc:
        seen = f"a character that is no text (number {exc.character:#x})"
        rule = "a file holds letters, blanks and line ends"
        fault = Fault(name, "", seen, rule, f"look at letter {exc.position + 1}")
        raise SpecError([fault]) from exc
    except yaml.YAMLError as exc:
        raise SpecError([_syntax_fault(exc, text, name)]) from exc
    except RecursionError as exc:
        raise SpecError([Fault(name, "", *_DEEP)]) from exc


def _syntax_fault(exc: yaml.YAMLError, text: str, name: str) -> Fault:
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    if mark is None:
        return Fault(name, "", f"not YAML: {exc}", _YAML, _FILE_FIX)
    where = f"{name}:{mark.line + 1}"
    line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
    if "\t" in line[: mark.column + 1]:
        return Fault(where, "", "a tab", "YAML indents with spaces only", "replace it by spaces")
    problem = getattr(exc, "problem", None) or str(exc)
    return Fault(where, "", f"not YAML: {problem}", _YAML, f"look at {_short(line.strip())}")


def _is_text(text: str) -> bool:
    """False where it stands for bytes that are no UTF-8, as names of files may."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _label(text: str) -> str:
    """What was typed, as one line of bearable length."""
    shown = text if text.isprintable() else repr(text)[1:-1]
    return shown if len(shown) <= LONGEST_LABEL else f"{shown[:LONGEST_LABEL]}..."


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


class _Builder:
    """Turns composed nodes into plain data, noting origins and faults in the document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._seen: set[int] = set()

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        if id(node) in self._seen:
            self._fault(
                self._where(node), path, "an alias (*name)", "these files use none", "write it out"
            )
            return None
        self._seen.add(id(node))
        if len(path) > DEEPEST:
            self._fault(self._where(node), path[:DEEPEST], *_DEEP)
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(child, (*path, k)) for k, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _item(self, node: yaml.Node, path: KeyPath) -> Any:
        self._document.origins[path] = self._where(node)
        return self.build(node, path)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is None:
                continue
            if key in result:
                first = self._document.origins[(*path, key)]
                rule = f"a key appears once; it is already at {first}"
                self._fault(
                    self._where(key_node),
                    (*path, key),
                    "the key is there twice",
                    rule,
                    "remove one",
                )
                continue
            self._document.origins[(*path, key)] = self._where(key_node)
            result[key] = self.build(value_node, (*path, key))
        return result

    def _key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if isinstance(node, yaml.ScalarNode):
            if node.tag == _CORE + "str":
                return str(node.value)
            shown, fix = repr(node.value), f'write "{node.value}" in quotes if it is meant'
        else:
            shown, fix = "a list or a set of keys", "write one word"
        self._fault(
            self._where(node), path, f"the key {shown} is not a word", "keys are words", fix
        )
        return None

    def _scalar(self, node: yaml.Node, path: KeyPath) -> Any:
        text = str(node.value)
        kind = node.tag.removeprefix(_CORE)
        if kind == "str":
            if not _is_text(text):  # escapes can make what no file can hold
                self._fault(self._document.where(path), path, *_NO_TEXT)
            return text.encode("utf-8", "backslashreplace").decode()
        if kind == "null":
            return None
        if kind == "bool" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind == "int" and _DECIMAL_INT.fullmatch(text):
            return int(text)
        if kind == "float" and _DECIMAL_FLOAT.fullmatch(text):
            return float(text)
        readings: Mapping[str, str] = {
            "bool": "true or false",
            "int": "a number in another base",
            "float": "a special number",
            "timestamp": "a date",
        }
        reading = readings.get(kind)
        message = f"{text!r} " + (f"is read by YAML as {reading}" if reading else "has a tag")
        rule = "numbers are plain decimals, switches true or false"
        self._fault(
            self._document.where(path),
            path,
            message,
            rule,
            f'write it so, or "{text}" in quotes for text',
        )
        return text

    def _where(self, node: yaml.Node) -> str:
        return f"{self._document.name}:{node.start_mark.line + 1}"

    def _fault(self, where: str, path: KeyPath, message: str, rule: str, fix: str) -> None:
        key = ".".join(str(part) for part in path)
        self._document.faults.append(Fault(where, key, message, rule, fix))
