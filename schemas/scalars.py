"""Names of the scalars that training and evaluation write to TensorBoard, so that both share a chart."""

TOTAL_LOSS = "loss"  # key of the sum of all loss terms, beside the terms
GRADIENT_NORM = "gradient_norm"  # of all variables together; with "/" and a variable's path, of that variable
GRADIENT_HISTOGRAM = "gradient"  # with "/" and a variable's path

# What training tells besides losses and the norms of single gradients.
_OTHERS = frozenset(
    {
        GRADIENT_NORM,
        "images_per_second",
        "input_bound",
        "instances_cut_off",
        "learning_rate",
        "loss_scale",
        "nonfinite_steps",
        "skipped_steps",
        "steps_per_second",
    }
)


def loss_tag(term: str) -> str:
    """Tag of a loss term, or of `TOTAL_LOSS`.

    Source: the TF Object Detection API's `model_lib_v2.py`, `Loss/total_loss` and `Loss/<term>`.
    """
    return "Loss/total_loss" if term == TOTAL_LOSS else f"Loss/{term}"


def training_tag(name: str) -> str:
    """Tag of anything that a training step or a window of steps tells."""
    return name if name in _OTHERS or is_variable_norm(name) else loss_tag(name)


def is_variable_norm(name: str) -> bool:
    """Whether it names the norm of one variable's gradient."""
    return name.startswith(f"{GRADIENT_NORM}/")
