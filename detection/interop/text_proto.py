"""Messages in protocol buffer text, with the line of each field, and with a record of the fields that were read."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

from google.protobuf import text_format

from detection.interop.conversion import Remark
from schemas.errors import ConfigError
from schemas.quoting import one_line, quoted

_NO_OPTION = "there is no such option"
_UNKNOWN = "unknown field"
_REASON = 300  # max characters of a parser's message


class _Field(NamedTuple):
    """A field in the text: its name, its line, and the fields of its message."""

    name: str
    line: int
    inner: tuple["_Field", ...] = ()


# `"D:\\tf\\new"` in quotes: backslashes would be escapes, of a tab and a line feed here.
_WINDOWS_PATH = re.compile(r"""(["'])[A-Za-z]:\\[^"'\n]*\1""")


def parse_text(text: str, message_class: Any, where: str) -> "Message":
    """Parses a message; unknown fields and extensions are among its fields.

    Args:
        text: protocol buffer text.
        message_class: class of the message.
        where: name of the file in error messages.

    Raises:
        ConfigError: another text, a value of another type, or a field or oneof twice; the message has the line.
    """
    message, text = message_class(), _WINDOWS_PATH.sub(lambda match: re.sub(r"\\+", "/", match[0]), text)
    try:
        text_format.Parse(text, message, allow_unknown_field=True, allow_unknown_extension=True)
        fields = tuple(_fields(text_format.Tokenizer(text.split("\n"))))
    except (text_format.ParseError, RecursionError, ValueError) as error:
        reason = one_line(error)[:_REASON]
        raise ConfigError(f"{where}:{'' if reason[:1].isdigit() else ' '}{reason}") from None
    return Message(message, fields, line=1)


def _fields(tokens: Any) -> Iterator[_Field]:
    """Yields the fields up to the end of their message; the text is valid."""
    while not tokens.AtEnd() and tokens.token not in ("}", ">"):
        name = _name(tokens)
        tokens.TryConsume(":")
        is_list = tokens.TryConsume("[")
        if not is_list:
            yield _field(name, tokens)
        while is_list and not tokens.TryConsume("]"):
            yield _field(name, tokens)
            tokens.TryConsume(",")
        tokens.TryConsume(",") or tokens.TryConsume(";")


def _name(tokens: Any) -> str:
    """Consumes a name, such as `field` or `[package.extension]`."""
    parts = [tokens.token]
    tokens.NextToken()
    while parts[0] == "[" and parts[-1] != "]":
        parts.append(tokens.token)
        tokens.NextToken()
    return "".join(parts)


def _field(name: str, tokens: Any) -> _Field:
    """Consumes a value."""
    line = tokens.ParseError("").GetLine()
    if tokens.token in ("{", "<"):
        tokens.NextToken()
        inner = tuple(_fields(tokens))
        tokens.NextToken()
        return _Field(name, line, inner)
    is_text = tokens.token[0] in "\"'"
    tokens.NextToken()
    while is_text and tokens.token[:1] in ('"', "'"):  # adjacent strings are one
        tokens.NextToken()
    return _Field(name, line)


class Message:
    """A message; reading a field marks it, and `unread` lists the others.

    Args:
        message: values of the message.
        fields: its fields in the text.
        line: its line.
        path: its dotted name.

    Attributes:
        line: line of the message, or of the innermost one around it that the text has.
        path: its dotted name.
        unsupported: remarks on fields of this message that are not supported.
        notes: other remarks.
    """

    def __init__(self, message: Any, fields: tuple[_Field, ...], *, line: int, path: str = "") -> None:
        self._message = message
        self._fields = fields
        self._inner: dict[str, list[Message]] = {}
        self._read: set[str] = set()
        self.line = line
        self.path = path
        self.unsupported: list[Remark] = []
        self.notes: list[Remark] = []

    def __contains__(self, name: str) -> bool:
        return any(field.name == name for field in self._fields)

    def __getitem__(self, name: str) -> Any:
        """Returns a value, or its default; a list of those of a repeated field; of enums, the name."""
        self._read.add(name)
        enum = self._message.DESCRIPTOR.fields_by_name[name].enum_type
        value = getattr(self._message, name)
        if enum is not None:
            return enum.values_by_number[value].name
        return value if isinstance(value, str | int | float) else list(value)

    def get(self, name: str) -> Any:
        """Returns a value; None: it is not set."""
        value = self[name]
        return value if name in self else None

    def messages(self, name: str) -> list[Self]:
        """Returns the messages of a field."""
        self._read.add(name)
        if name not in self._inner:
            values = getattr(self._message, name)
            if not hasattr(values, "__len__"):
                values = [values]
            places = [field for field in self._fields if field.name == name]
            self._inner[name] = [
                type(self)(value, place.inner, line=place.line, path=self._path(name))
                for value, place in zip(values, places, strict=False)
            ]
        return self._inner[name]  # type: ignore[return-value]

    def message(self, name: str) -> Self:
        """Returns the message of a field; one without fields if it is not set."""
        messages = self.messages(name)
        if not messages:
            messages.append(type(self)(getattr(self._message, name), (), line=self.line, path=self._path(name)))
        return messages[0]

    def kind(self, oneof: str, *supported: str, reason: str) -> str:
        """Returns the name of the field that is set of a oneof; "": none, or not one of `supported`, and listed so."""
        name = self._message.WhichOneof(oneof) or ""
        if name in supported:
            return name
        self.refuse(name or oneof, reason if name else f"missing; the original needs it. {reason}")
        return ""

    def refuse(self, name: str, reason: str) -> None:
        """Lists a field, which need not be set, as not supported."""
        self._read.add(name)
        self.unsupported.append(self._remark(name, reason))

    def accept(self, *names: str) -> None:
        """Marks fields without an effect as read."""
        self._read.update(names)

    def note(self, name: str, text: str) -> None:
        """Adds a remark on a field."""
        self._read.add(name)
        self.notes.append(self._remark(name, text))

    def only(self, name: str, *values: Any, reason: str) -> Any:
        """Returns a value, and lists the field as not supported unless it is one of `values`."""
        value = self[name]
        if value not in values:
            self.refuse(name, f"{quoted(value)}: {reason}")
        return value

    def _remark(self, name: str, text: str) -> Remark:
        line = next((field.line for field in self._fields if field.name == name), self.line)
        return Remark(self._path(name), line, text)

    def _path(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def walk(self) -> Iterator["Message"]:
        """Yields this message and those inside that were read."""
        yield self
        for messages in self._inner.values():
            for message in messages:
                yield from message.walk()

    def not_supported(self, marks: Mapping[tuple[str, str], str]) -> Iterator[Remark]:
        """Yields the refused fields of this message, and those that were not read.

        A value that is the default needs no reading.  Of a message that was not read, or has no effect, only unknown
        fields are listed.

        Args:
            marks: by message and name, fields that need no reading.
        """
        yield from self.unsupported
        descriptor = self._message.DESCRIPTOR
        for field in self._fields:
            known = descriptor.fields_by_name.get(field.name)
            if known is None:
                yield Remark(self._path(field.name), field.line, _UNKNOWN)
                continue
            if field.name not in self._inner and known.message_type:
                yield from _unknown_fields(field.inner, known.message_type, self._path(field.name))
            if field.name in self._read or (descriptor.name, field.name) in marks:
                continue
            if known.message_type or getattr(self._message, field.name) != known.default_value:
                yield Remark(self._path(field.name), field.line, _NO_OPTION)

    def marked(self, marks: Mapping[tuple[str, str], str], mark: str, text: str) -> Iterator[Remark]:
        """Yields a remark for each field of this message with a mark."""
        for field in self._fields:
            if marks.get((self._message.DESCRIPTOR.name, field.name)) == mark:
                yield Remark(self._path(field.name), field.line, text)


def _unknown_fields(fields: tuple[_Field, ...], descriptor: Any, path: str) -> Iterator[Remark]:
    """Yields a remark for each unknown field; in a message without any known field, none is."""
    for field in fields if descriptor.fields else ():
        known, name = descriptor.fields_by_name.get(field.name), f"{path}.{field.name}"
        if known is None:
            yield Remark(name, field.line, _UNKNOWN)
        elif known.message_type:
            yield from _unknown_fields(field.inner, known.message_type, name)
