"""Messages in protocol buffer text, read without a schema: the reader of a field says its type and its default."""

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from google.protobuf import text_format

from detection.interop.conversion import Remark
from schemas.errors import ConfigError
from schemas.quoting import one_line, quoted

_NO_OPTION = "there is no such option"
_UNKNOWN = "unknown field"
_REASON = 300  # max characters of a parser's message


class _Field(NamedTuple):
    """A field in the text.

    name: its name, or `[package.extension]`.
    line, column: its value's position, from 1.
    value: the characters of a number or name, without quotes of a string.
    is_text: the value is in quotes.
    inner: fields of a message; None: the value is a scalar.
    """

    name: str
    line: int
    column: int
    value: str = ""
    is_text: bool = False
    inner: tuple["_Field", ...] | None = None


# `"D:\\tf\\new"` in quotes: backslashes would be escapes, of a tab and a line feed here.
_WINDOWS_PATH = re.compile(r"""(["'])[A-Za-z]:\\[^"'\n]*\1""")
_SCALAR = re.compile(r"[\w.+-]+")
_ENDS = {"{": "}", "<": ">"}


def parse_text(text: str, where: str, oneofs: Mapping[str, Collection[str]]) -> "Message":
    """Parses a message.

    Args:
        text: protocol buffer text.
        where: name of the file in error messages.
        oneofs: names of the fields of each oneof.

    Raises:
        ConfigError: another text; the message has the line.
    """
    text = _WINDOWS_PATH.sub(lambda match: re.sub(r"\\+", "/", match[0]), text)
    try:
        fields = tuple(_fields(text_format.Tokenizer(text.split("\n")), end=""))
    except (text_format.ParseError, RecursionError) as error:
        reason = one_line(error)[:_REASON]
        raise ConfigError(f"{where}:{'' if reason[:1].isdigit() else ' '}{reason}") from None
    return Message(fields, where=where, oneofs=oneofs, line=1)


def _fields(tokens: Any, end: str) -> Iterator[_Field]:
    """Yields the fields up to the end of their message, and consumes it."""
    while tokens.token != end:
        name = _name(tokens)
        has_colon = tokens.TryConsume(":")
        if has_colon and tokens.TryConsume("["):
            while not tokens.TryConsume("]"):
                yield _field(name, tokens)
                if tokens.token != "]":
                    tokens.Consume(",")
        elif has_colon or tokens.token in _ENDS:
            yield _field(name, tokens)
        else:
            raise tokens.ParseError(f'Expected ":" after {name}.')
        tokens.TryConsume(",") or tokens.TryConsume(";")
    tokens.NextToken()


def _name(tokens: Any) -> str:
    """Consumes a name, such as `field` or `[package.extension]`."""
    if not tokens.TryConsume("["):
        return str(tokens.ConsumeIdentifier())
    parts = []
    while not tokens.TryConsume("]"):
        parts.append(tokens.TryConsume(".") or tokens.TryConsume("/") or tokens.ConsumeIdentifier())
    return f"[{''.join('.' if part is True else part for part in parts)}]"


def _field(name: str, tokens: Any) -> _Field:
    """Consumes a value."""
    place = tokens.ParseError("")
    field = _Field(name, place.GetLine(), place.GetColumn(), tokens.token)
    if tokens.token in _ENDS:
        tokens.NextToken()
        return field._replace(inner=tuple(_fields(tokens, _ENDS[field.value])))
    if tokens.token[:1] in ('"', "'"):
        return field._replace(value=tokens.ConsumeString(), is_text=True)
    if not _SCALAR.fullmatch(tokens.token):
        raise tokens.ParseError(f"Expected a value of {name}.")
    tokens.NextToken()
    return field


class Message:
    """A message; reading a field marks it, and `unread` lists the others.

    Args:
        fields: its fields in the text.
        where, oneofs: as for `parse_text`.
        line: its line.
        path: its dotted name.

    Attributes:
        line: line of the message, or of the innermost one around it that the text has.
        path: its dotted name.
        unsupported: remarks on fields of this message that are not supported.
        notes: other remarks.
    """

    def __init__(
        self, fields: Sequence[_Field], *, where: str, oneofs: Mapping[str, Collection[str]], line: int, path: str = ""
    ) -> None:
        self._fields = fields
        self._where = where
        self._oneofs = oneofs
        self._inner: dict[str, list[Message]] = {}
        self._read: set[str] = set()
        self._refused: set[str] = set()
        self.line = line
        self.path = path
        self.unsupported: list[Remark] = []
        self.notes: list[Remark] = []

    def __contains__(self, name: str) -> bool:
        return any(field.name == name for field in self._fields)

    def get(self, name: str, default: Any, enum: Sequence[str] = ()) -> Any:
        """Returns the value of a field, or its default.

        Args:
            name: name of the field.
            default: its default; the value has the same type.
            enum: names of an enum's values, in the order of their numbers from 0; the value is one of them.

        Raises:
            ConfigError: a value of another type, or two values.
        """
        field = self._single(name)
        return default if field is None else self._value(field, type(default), enum)

    def values(self, name: str, kind: type) -> list[Any]:
        """Returns the values of a repeated field, of the type `kind`; `object`: of any.

        Raises:
            ConfigError: a value of another type.
        """
        self._read.add(name)
        return [self._value(field, kind) for field in self._fields if field.name == name]

    def messages(self, name: str) -> list[Self]:
        """Returns the messages of a field.

        Raises:
            ConfigError: a value that is not a message.
        """
        self._read.add(name)
        if name not in self._inner:
            self._inner[name] = [self._child(field) for field in self._fields if field.name == name]
        return self._inner[name]  # type: ignore[return-value]

    def message(self, name: str) -> Self:
        """Returns the message of a field; one without fields if it is not set.

        Raises:
            ConfigError: two messages, or a value that is not a message.
        """
        self._single(name)
        messages = self.messages(name)
        if not messages:
            messages.append(self._child(_Field(name, self.line, 1, inner=())))
        return messages[0]

    def kind(self, oneof: str, *supported: str, reason: str) -> str:
        """Returns the name of the field that is set of a oneof.

        Args:
            oneof: name of the oneof.
            supported: names of its supported fields.
            reason: reason why the other fields, and none, are listed as not supported.

        Returns:
            The name; "": no field, or a field that is not supported, which is listed.

        Raises:
            ConfigError: two fields are set.
        """
        found = [field for field in self._fields if field.name in self._oneofs[oneof]]
        for field in found[1:]:
            raise self._error(field, f"is set, and so is {found[0].name}: remove one of them")
        name = found[0].name if found else ""
        if name in supported:
            return name
        self.refuse(name or oneof, reason if name else f"missing; the original needs it. {reason}")
        return ""

    def member(self, oneof: str, name: str, reason: str) -> Self:
        """Returns the message of the only supported field of a oneof; see `kind` and `message`."""
        self.kind(oneof, name, reason=reason)
        return self.message(name)

    def refuse(self, name: str, reason: str) -> None:
        """Lists a field, which need not be set, as not supported."""
        self._refused.add(name)
        self.unsupported.append(self._remark(name, reason))

    def accept(self, *names: str) -> None:
        """Marks fields without an effect as read."""
        self._read.update(names)

    def note(self, name: str, text: str) -> None:
        """Adds a remark on a field."""
        self._read.add(name)
        self.notes.append(self._remark(name, text))

    def only(self, name: str, *values: Any, reason: str, default: Any = None, enum: Sequence[str] = ()) -> Any:
        """Returns a value, and lists the field as not supported unless it is one of `values`.

        Args:
            name: name of the field.
            values: supported values.
            reason: reason why others are not supported.
            default: the field's default; None: the first of `values`.
            enum: see `get`.

        Raises:
            ConfigError: see `get`.
        """
        value = self.get(name, values[0] if default is None else default, enum)
        if value not in values:
            self.refuse(name, f"{quoted(value)}: {reason}")
        return value

    def walk(self) -> Iterator["Message"]:
        """Yields this message and those inside that were read."""
        yield self
        for messages in self._inner.values():
            for message in messages:
                yield from message.walk()

    def unread(
        self, unsupported: Mapping[str, Any], without_effect: Collection[str], inside: Collection[str]
    ) -> Iterator[Remark]:
        """Yields the fields of this message that were not read, but for those without an effect.

        Args:
            unsupported: fields of which only a value is supported, such as their default, by name; None: no value.
            without_effect: names of fields without an effect.
            inside: names of other fields in messages without an effect, of which only unknown fields are listed.
        """
        known = {*unsupported, *without_effect, *inside}
        for field in self._fields:
            if field.name in self._refused or field.name in self._inner:
                continue
            if field.name in self._read or field.name in without_effect:
                yield from _unknown(field, known, self._path(field.name))
            elif field.name not in unsupported:
                yield Remark(self._path(field.name), field.line, _UNKNOWN)
            elif field.inner is not None or _parse(field, object) != unsupported[field.name]:
                yield Remark(self._path(field.name), field.line, _NO_OPTION)

    def remarks_on(self, names: Collection[str], text: str) -> Iterator[Remark]:
        """Yields a remark on each field with one of the names that was not read."""
        for field in self._fields:
            if field.name in names and field.name not in self._read:
                yield Remark(self._path(field.name), field.line, text)

    def _single(self, name: str) -> _Field | None:
        self._read.add(name)
        found = [field for field in self._fields if field.name == name]
        for field in found[1:]:
            raise self._error(field, "is set twice: remove one of them")
        return found[0] if found else None

    def _value(self, field: _Field, kind: type, enum: Sequence[str] = ()) -> Any:
        try:
            return _parse(field, kind, enum)
        except (IndexError, ValueError):
            expected = ", ".join(enum) or f"of type {kind.__name__}"
            raise self._error(field, f"is {quoted(field.value)}, not {expected}") from None

    def _error(self, field: _Field, text: str) -> ConfigError:
        place = f"{self._where}:{field.line}:{field.column}"
        return ConfigError(one_line(f"{place} : {self._path(field.name)} {text}.")[: _REASON + len(self._where)])

    def _child(self, field: _Field) -> Self:
        if field.inner is None:
            raise self._error(field, "is a message, { ... }")
        path = self._path(field.name)
        return type(self)(field.inner, where=self._where, oneofs=self._oneofs, line=field.line, path=path)

    def _remark(self, name: str, text: str) -> Remark:
        line = next((field.line for field in self._fields if field.name == name), self.line)
        return Remark(self._path(name), line, text)

    def _path(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def _parse(field: _Field, kind: type, enum: Sequence[str] = ()) -> Any:
    """Returns the value of a scalar; `kind` `object`: as the text writes it, names of enums as strings.

    Raises:
        IndexError, ValueError: a value of another type.
    """
    if kind is object:
        for known in (str, int, float):
            with contextlib.suppress(ValueError):
                return _parse(field, known)
        return {"true": True, "false": False}.get(field.value, field.value)
    if field.inner is not None or field.is_text != (kind is str and not enum):
        raise ValueError(field.name)
    if enum:
        return field.value if field.value in enum else enum[text_format.ParseInteger(field.value)]
    return _PARSE[kind](field.value)


_PARSE: Mapping[type, Callable[[str], Any]] = {
    str: str,
    bool: text_format.ParseBool,
    int: lambda text: text_format.ParseInteger(text, is_signed=True),
    float: text_format.ParseFloat,
}


def _unknown(field: _Field, known: Collection[str], path: str) -> Iterator[Remark]:
    """Yields a remark on each unknown field inside a field."""
    for inner in field.inner or ():
        if inner.name not in known:
            yield Remark(f"{path}.{inner.name}", inner.line, _UNKNOWN)
        else:
            yield from _unknown(inner, known, f"{path}.{inner.name}")
