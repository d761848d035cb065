"""Renders templates to HTML text."""

import base64
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, PrefixLoader, StrictUndefined
from markupsafe import Markup

from detection.reports.html.plot import HEIGHT, SERIES, UNIT_TICKS, WIDTH
from detection.reports.html.table import breakable, cell_attributes, cell_text

_HERE = "detection.reports.html"


def render_page(
    package: str,
    template: str,
    *,
    scripts: Sequence[str] = (),
    filters: Mapping[str, Callable[..., Any]] | None = None,
    **content: Any,
) -> str:
    """Renders a template that extends `pages/base.html.j2`.

    Args:
        package: dotted name of the package with the template, as `own/...`.
        template: file name of the template.
        scripts: names of JavaScript files in this folder, or in `package`; the page's
            security policy allows only these scripts, whatever the data contain.
        filters: name -> function, for the template.
        content: variables of the template.

    Returns:
        Text in valid UTF-8: lone surrogates, which names in JSON may contain, become question
        marks.
    """
    environment = _environment(package, frozenset((filters or {}).items()))
    script = "\n".join(_script(package, name) for name in scripts)
    page = environment.get_template(f"own/{template}").render(
        script=Markup(script), script_hash=_policy_hash(script), **content
    )
    return page.encode("utf-8", "replace").decode()


@functools.cache
def _environment(package: str, filters: frozenset[tuple[str, Callable[..., Any]]]) -> Environment:
    """Caches compiled templates: compiling takes longer than rendering most pages."""
    loaders = {"pages": PackageLoader(_HERE, "."), "own": PackageLoader(package, ".")}
    environment = Environment(
        loader=PrefixLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.globals.update(plot_width=WIDTH, plot_height=HEIGHT, plot_series=SERIES, unit_ticks=UNIT_TICKS)
    environment.filters.update(
        breakable=breakable, cell=cell_text, cell_attributes=cell_attributes, data_uri=data_uri, **dict(filters)
    )
    return environment


def data_uri(content: bytes, media_type: str) -> str:
    """Returns a file's content as a data URI."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def _script(package: str, name: str) -> str:
    place = files(_HERE).joinpath(name)
    return (place if place.is_file() else files(package).joinpath(name)).read_text(encoding="utf-8")


def _policy_hash(script: str) -> str:
    """Returns the hash of an inline script for a Content-Security-Policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
