"""Names of the scalars that training and evaluation write to TensorBoard, equal so that both share a chart."""

TOTAL_LOSS = "loss"  # key of the sum of all loss terms, beside the terms
GRADIENT_NORM = "gradient_norm"  # of all variables together; with "/" and a variable's path, of that variable
GRADIENT_HISTOGRAM = "gradient"  # with "/" and a variable's path
TRUNCATED = "instances_cut_off"  # instances beyond model.max_instances

# Scalars of training besides losses and the norms of single gradients.
_OTHERS = frozenset(
    {
        GRADIENT_NORM,
        "images_per_second",
        "input_bound",
        TRUNCATED,
        "learning_rate",
        "loss_scale",
        "nonfinite_steps",
        "skipped_steps",
        "steps_per_second",
    }
)


def loss_tag(term: str) -> str:
    """Returns the tag of a loss term, or of `TOTAL_LOSS`.

    Source: the TF Object Detection API's `model_lib_v2.py`, `Loss/total_loss` and `Loss/<term>`.
    """
    return "Loss/total_loss" if term == TOTAL_LOSS else f"Loss/{term}"


def training_tag(name: str) -> str:
    """Returns the tag of a scalar of a training step or of a window of steps."""
    return name if name in _OTHERS or is_variable_norm(name) else loss_tag(name)


def is_variable_norm(name: str) -> bool:
    """Tells whether `name` is the norm of one variable's gradient."""
    return name.startswith(f"{GRADIENT_NORM}/")
