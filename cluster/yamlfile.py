"""Checks a YAML document against a model: every fault at once, each with file:line, key and fix.

`load_yaml` and `Document` come from yamltree; the models are those of cluster and of jobs. Where a
model is one of several, `kind` tells which: its words are those of the error.
"""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from cluster.errors import Fault, SpecError
from cluster.yamltree import Document, KeyPath, load_yaml

LONGEST_SHOWN = 120

__all__ = ["Document", "StrictModel", "load_yaml", "nearest", "validate"]

Model = TypeVar("Model", bound=BaseModel)


class StrictModel(BaseModel):
    """Base of everything that is read from a file: no unknown keys, no converted types."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        populate_by_name=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


def validate(model: type[Model], document: Document) -> Model:
    """The document as a model. Raises SpecError with every fault of the file, in its order."""
    faults = list(document.faults)
    spoilt = {(fault.where, fault.key) for fault in faults}
    result: Model | None = None
    try:
        result = model.model_validate_json(json.dumps(document.data), strict=True)
    except ValidationError as exc:
        for error in exc.errors(include_url=False):
            keys, level = _untagged(model, error["loc"])
            path = _known_path(document, keys)
            if (document.where(path), _dotted(path)) not in spoilt:
                faults.append(_fault(_Place(model, level, path), document, dict(error)))
    if faults or result is None:
        raise SpecError(sorted(dict.fromkeys(faults), key=_in_file_order))
    return result


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint such as `did you mean "rate"?`, or the list of what is known."""
    names = sorted(known)
    close = difflib.get_close_matches(word.replace("-", "_"), names, n=1, cutoff=0.6)
    listed = ", ".join(names) or "none"
    return f'did you mean "{close[0]}"? known: {listed}' if close else f"known: {listed}"


def _in_file_order(fault: Fault) -> tuple[bool, int, str]:
    line = fault.where.rpartition(":")[2]
    return (not line.isdigit(), int(line) if line.isdigit() else 0, fault.key)


def _dotted(path: KeyPath) -> str:
    return ".".join(str(part) for part in path)


def _known_path(document: Document, loc: tuple[int | str, ...]) -> KeyPath:
    """`loc` without what pydantic adds to it (names of union members, `[key]`)."""
    path: KeyPath = ()
    for part in loc:
        if (*path, part) in document.origins or part == loc[-1]:
            path = (*path, part)
    return path


def _untagged(
    model: type[BaseModel], loc: tuple[int | str, ...]
) -> tuple[tuple[int | str, ...], type[BaseModel] | None]:
    """`loc` without the kinds that pydantic puts into it, and the model that has its last key."""
    keys: list[int | str] = []
    level: type[BaseModel] | None = model
    parts = list(loc)
    while parts:
        keys.append(parts.pop(0))
        info = _fields(level).get(str(keys[-1])) if level else None
        members = list(_models_in(info.annotation)) if info else []
        if info and parts and _is_mapping(info.annotation):
            keys.append(parts.pop(0))
        if parts and len(members) > 1:
            tag = parts.pop(0)
            members = [member for member in members if _kind(member) == tag]
        if parts:
            level = members[0] if members else None
    return tuple(keys), level


@dataclass(frozen=True)
class _Place:
    """A key path of a document, in `root`; `level` is the model that has its last key."""

    root: type[BaseModel]
    level: type[BaseModel] | None
    path: KeyPath


def _fault(place: _Place, document: Document, error: dict[str, Any]) -> Fault:
    path = place.path
    where, key = document.where(path), _dotted(path)
    seen = error.get("input")
    kind = str(error["type"])
    cause = error.get("ctx", {}).get("error")
    if kind == "extra_forbidden":
        return Fault(where, key, "unknown key", None, _fix_for(place))
    if kind == "missing":
        return Fault(where, key, "is missing", "it has no default", f"add {path[-1]}: ...")
    if hasattr(cause, "rule"):  # an error of ours, of whichever package
        path = (*path, *getattr(cause, "below", ()))
        fix = " or: ".join(cause.fix) or None
        return Fault(document.where(path), _dotted(path), cause.message, cause.rule, fix)
    if kind == "union_tag_invalid":  # none of the kinds
        path, seen = (*path, "kind"), error["input"]["kind"]
        known = re.findall(r"'([^']+)'", error["ctx"]["expected_tags"])
        return Fault(
            document.where(path), _dotted(path), _seen(seen), None, nearest(str(seen), known)
        )
    if kind == "literal_error":
        choices = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return Fault(where, key, _seen(seen), None, nearest(str(seen), choices))
    if cause is not None:
        return Fault(where, key, str(cause))
    if kind == "string_pattern_mismatch":
        pattern = error["ctx"]["pattern"]
        return Fault(where, key, _seen(seen), f"must match {pattern}", _word_fix(pattern, seen))
    rule = _RULES.get(kind, str(error["msg"]).lower().replace("input should be", "must be"))
    fix = _number_fix(kind, seen) or _limit_fix(error.get("ctx", {})) or rule.replace(*_DO, 1)
    return Fault(where, key, _seen(seen), rule, fix)


_DO = ("must be", "write")
_RULES = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a set of keys",
    "model_type": "must be a set of keys",
    "model_attributes_type": "must be a set of keys",
}


def _seen(value: object) -> str:
    kinds = {str: "text", bool: "a switch", int: "a number", float: "a number", list: "a list"}
    kind = kinds.get(type(value), "a set of keys" if isinstance(value, dict) else "")
    shown = "nothing" if value is None else json.dumps(value)
    shown = shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}..."
    return f"{shown} ({kind})" if kind else shown


def _number_fix(kind: str, seen: object) -> str | None:
    """For text such as `1e6` in a field that takes a number: the number to write."""
    if kind == "string_type" and isinstance(seen, (int, float)):
        return f'write "{seen}" in quotes'
    if kind not in ("int_type", "float_type") or not isinstance(seen, str):
        return None
    try:
        number = float(seen)
    except ValueError:
        return None
    if number.is_integer() and abs(number) < 1e15:
        return f"write {int(number)}"
    return f"write {number!r}" if kind == "float_type" and "e" not in repr(number) else None


def _limit_fix(context: Mapping[str, Any]) -> str | None:
    """For a number on the wrong side of a limit: where the right side is."""
    words = {"ge": "{} or more", "le": "{} or less", "gt": "more than {}", "lt": "less than {}"}
    found = [text.format(context[limit]) for limit, text in words.items() if limit in context]
    return f"write {found[0]}" if found else None


def _word_fix(pattern: str, seen: object) -> str | None:
    """The word nearest to `seen` that the pattern takes."""
    word = re.sub(r"[^a-z0-9._-]+", "-", str(seen).lower()).strip("-._")[:40]
    return f"write {word}" if re.fullmatch(pattern, word) else None


def _fix_for(place: _Place) -> str:
    """Where an unknown key belongs, or the nearest valid name at its own level."""
    word = str(place.path[-1])
    known = list(_fields(place.level)) if place.level else []
    if word.replace("-", "_") not in known:
        places = _places(place.root, ())
        siblings = {
            path[-1]: kinds for path, kinds in places.items() if path[:-1] == place.path[:-1]
        }
        if place.level and any(siblings.values()):
            return _of_kinds(word, place.level, siblings)
        found = {path: kinds for path, kinds in places.items() if path[-1] == word}
        if found:
            listed = [_dotted(path) + _kinds_words(kinds) for path, kinds in found.items()]
            return "this key belongs at " + " or ".join(listed)
    return nearest(word, known)


def _of_kinds(word: str, level: type[BaseModel], siblings: Mapping[str | int, list[str]]) -> str:
    """A hint where which keys there are depends on `kind`."""
    own = f"kind {_kind(level)} has: {', '.join(sorted(_fields(level)))}"
    if word in siblings:
        return f'"{word}" is a key{_kinds_words(siblings[word])}; {own}'
    names = [str(name) for name in siblings]
    close = difflib.get_close_matches(word.replace("-", "_"), names, n=1, cutoff=0.6)
    if close:
        whose = "" if close[0] in _fields(level) else f", a key{_kinds_words(siblings[close[0]])}"
        return f'did you mean "{close[0]}"{whose}? {own}'
    return own


def _kinds_words(kinds: list[str]) -> str:
    return f" of kind {' or '.join(kinds)}" if kinds else ""


def _kind(model: type[BaseModel]) -> str | None:
    info = model.model_fields.get("kind")
    return str(info.default) if info else None


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _is_mapping(annotation: Any) -> bool:
    origin = getattr(annotation, "__origin__", None)
    return origin is dict or any(_is_mapping(inner) for inner in get_args(annotation))


def _places(model: type[BaseModel], above: KeyPath) -> dict[KeyPath, list[str]]:
    """Every key path that the model knows; `*` stands for a free name.

    With the kinds that have it, where not all of those that could be there do.
    """
    places: dict[KeyPath, list[str]] = {}
    for key, info in _fields(model).items():
        places[(*above, key)] = []
        members = list(_models_in(info.annotation))
        star: KeyPath = ("*",) if _is_mapping(info.annotation) else ()
        found = [(_kind(member), _places(member, (*above, key, *star))) for member in members]
        for path in dict.fromkeys(path for _, inner in found for path in inner):
            kinds = [str(kind) for kind, inner in found if path in inner]
            places[path] = kinds if len(kinds) < len(members) else found[0][1][path]
    return places
