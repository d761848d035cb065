"""Makes a component of a function that selects from the history."""

from collections.abc import Callable
from typing import Any

from tfx.dsl.component.experimental.decorators import component

from components.history.driver import SelectingDriver
from components.history.execution import recorded


def selecting(node: str) -> Callable[[Callable[..., None]], Any]:
    """Makes a component of a function, as TFX's decorator does; it is recorded, and never reused.

    Args:
        node: id of the node.
    """

    def decorate(function: Callable[..., None]) -> Any:
        made: Any = component(function)
        executor = made.EXECUTOR_SPEC.executor_class
        executor.Do = recorded(node)(executor.Do)
        made.DRIVER_CLASS = SelectingDriver
        return made

    return decorate
