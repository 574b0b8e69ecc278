"""Checks a YAML document against a model: every fault at once, each with file:line, key and fix.

`load_yaml` and `Document` come from yamltree; the models are those of cluster and of jobs.
"""

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from cluster.errors import Fault, SpecError
from cluster.yamltree import Document, KeyPath, load_yaml

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
            path = _known_path(document, error["loc"])
            if (document.where(path), _dotted(path)) not in spoilt:
                faults.append(_fault(model, document, path, dict(error)))
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


def _fault(
    model: type[BaseModel], document: Document, path: KeyPath, error: dict[str, Any]
) -> Fault:
    where, key = document.where(path), _dotted(path)
    seen = error.get("input")
    kind = str(error["type"])
    cause = error.get("ctx", {}).get("error")
    if kind == "extra_forbidden":
        return Fault(where, key, "unknown key", None, _place_for(model, path))
    if kind == "missing":
        return Fault(where, key, "is missing", None, f"add {path[-1]}: ...")
    if hasattr(cause, "rule"):  # an error of ours, of whichever package
        path = (*path, *getattr(cause, "below", ()))
        fix = " or: ".join(cause.fix) or None
        return Fault(document.where(path), _dotted(path), cause.message, cause.rule, fix)
    if kind == "literal_error":
        choices = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        return Fault(where, key, _seen(seen), None, nearest(str(seen), choices))
    if cause is not None:
        return Fault(where, key, str(cause))
    if kind == "string_pattern_mismatch":
        pattern = error["ctx"]["pattern"]
        return Fault(where, key, _seen(seen), f"must match {pattern}", _word_fix(pattern, seen))
    rule = _RULES.get(kind, str(error["msg"]).lower().replace("input should be", "must be"))
    return Fault(where, key, _seen(seen), rule, _number_fix(kind, seen))


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


def _word_fix(pattern: str, seen: object) -> str | None:
    """The word nearest to `seen` that the pattern takes."""
    word = re.sub(r"[^a-z0-9._-]+", "-", str(seen).lower()).strip("-._")[:40]
    return f"write {word}" if re.fullmatch(pattern, word) else None


def _place_for(model: type[BaseModel], path: KeyPath) -> str:
    """Where an unknown key belongs, or the nearest valid name at its own level."""
    word = str(path[-1])
    level = _model_at(model, path[:-1])
    known = list(_keys(level)) if level else []
    if word.replace("-", "_") not in known:
        places = [found for found in _places(model, ()) if found[-1] == word]
        if places:
            return "this key belongs at " + " or ".join(_dotted(place) for place in places)
    return nearest(word, known)


def _keys(model: type[BaseModel]) -> Iterator[str]:
    for name, info in model.model_fields.items():
        yield info.alias or name


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


def _model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    current: type[BaseModel] = model
    parts = list(path)
    while parts:
        info = _fields(current).get(str(parts.pop(0)))
        inner = next(_models_in(info.annotation), None) if info else None
        if info is None or inner is None:
            return None
        if _is_mapping(info.annotation) and parts:
            parts.pop(0)
        current = inner
    return current


def _places(model: type[BaseModel], above: KeyPath) -> Iterator[KeyPath]:
    """Every key path that the model knows; `*` stands for a free name."""
    for key, info in _fields(model).items():
        yield (*above, key)
        for inner in _models_in(info.annotation):
            star: KeyPath = ("*",) if _is_mapping(info.annotation) else ()
            yield from _places(inner, (*above, key, *star))
