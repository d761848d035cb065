"""Keys of the update rule: those that cannot act, or contradict each other, are refused with the reason."""

import pytest

from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import ConfigError

STEP = ("train.schedule.name=step", "train.schedule.boundaries=[200, 400]")


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["optimizer.name=adam", "optimizer.nesterov=true"], "nesterov = True does nothing under name = adam"),
        (["optimizer.name=adamw", "optimizer.momentum=0.8"], "momentum = 0.8 does nothing under name = adamw"),
        (["optimizer.name=sgd", "optimizer.beta_1=0.8"], "beta_1 = 0.8 does nothing under name = sgd"),
        (["optimizer.momentum=0.8"], "momentum = 0.8 does nothing under name = adamw"),
        (["optimizer.name=sgd", "optimizer.epsilon=1e-3"], "epsilon = 0.001 does nothing under name = sgd"),
        (["optimizer.name=rmsprop", "optimizer.nesterov=true"], "nesterov = True does nothing under name = rmsprop"),
        (["optimizer.name=adam", "optimizer.rho=0.8"], "rho = 0.8 does nothing under name = adam"),
        (
            ["optimizer.name=sgd", "optimizer.momentum=0", "optimizer.nesterov=true"],
            "nesterov = True does nothing while momentum is 0",
        ),
        (
            ["optimizer.name=sgd", "optimizer.momentum=0", "optimizer.legacy_momentum=true"],
            "legacy_momentum = True does nothing while",
        ),
        (["optimizer.name=sgd"], r"optimizer\.name = sgd has no default for schedule\.learning_rate; set it"),
        (["optimizer.name=adam", "optimizer.legacy_momentum=true"], "legacy_momentum = True does nothing under name"),
        (["optimizer.name=sgd", "optimizer.centered=true"], "centered = True does nothing under name = sgd"),
        (
            ["optimizer.weight_decay=0", "optimizer.weight_decay_exclude=[a]"],
            r"weight_decay_exclude = \('a',\) does nothing while weight_decay is 0",
        ),
        (["optimizer.weight_decay_exclude=['(']"], r"'\(' is not a regular expression"),
        (["optimizer.name=adadelta", "optimizer.momentum=0.8"], "momentum = 0.8 does nothing under name = adadelta"),
        (["optimizer.name=adagrad", "optimizer.rho=0.8"], "rho = 0.8 does nothing under name = adagrad"),
        (
            ["optimizer.name=sgd", "optimizer.lars_coefficient=0.1"],
            "lars_coefficient = 0.1 does nothing under name = sgd",
        ),
        (["optimizer.name=adam", "optimizer.lars_weight_decay=0.1"], "lars_weight_decay = 0.1 does nothing under"),
        (["optimizer.name=rmsprop", "optimizer.lars_exclude=[a]"], r"lars_exclude = \('a',\) does nothing under"),
        (
            ["optimizer.name=lars", "optimizer.lars_weight_decay=0", "optimizer.lars_decays_weights=true"],
            "lars_decays_weights = True does nothing while lars_weight_decay is 0",
        ),
        (["optimizer.name=lars", "optimizer.lars_exclude=['(']"], r"'\(' is not a regular expression"),
        (
            ["optimizer.name=sgd", "optimizer.initial_accumulator_value=1"],
            "initial_accumulator_value = 1.0 does nothing under name = sgd",
        ),
        (["optimizer.name=rmsprop", "optimizer.initial_accumulator_value=-1"], "initial_accumulator_value = -1"),
        (
            ["optimizer.name=rmsprop", "optimizer.epsilon=0"],
            "name = rmsprop divides by zero if epsilon and a gradient are 0",
        ),
        (
            ["optimizer.name=adadelta", "optimizer.epsilon=0"],
            "name = adadelta divides by zero if epsilon and a gradient are 0",
        ),
        (
            ["optimizer.name=adagrad", "optimizer.initial_accumulator_value=0"],
            "name = adagrad divides by zero .* set epsilon, or initial_accumulator_value",
        ),
        (["clip.bias_variables=bias"], "bias_variables = bias does nothing while bias_multiplier is 1"),
        (
            ["pattern_match=anywhere"],
            "pattern_match = anywhere does nothing without trainable, freeze, expressions of optimizer",
        ),
        (["clip.norm_ratio=0.02"], "global_norm and norm_ratio bound the same norm"),
        (
            ["ema={enabled: false, use_moving_averages: false}"],
            "use_moving_averages = False does nothing while enabled",
        ),
        (["clip.multiply_after_clipping=true"], "multiply_after_clipping does nothing while bias_multiplier is 1"),
        (["freeze=['*']"], r"train\.freeze\.0.*'\*' is not a regular expression"),
        (["trainable=['[']"], r"train\.trainable\.0.*'\[' is not a regular expression"),
    ],
)
def test_what_cannot_act_is_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, [f"train.{assignment}" for assignment in assignments])


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["power=2"], "power = 2.0 does nothing under name = cosine"),
        (["name=constant", "hold_steps=5"], "hold_steps = 5 does nothing under name = constant"),
        (["name=exponential", "decay_steps=5", "phase=from_start"], "phase = from_start does nothing under name = exp"),
        (["decay_factor=0.5"], "decay_factor = 0.5 does nothing under name = cosine"),
        (["boundaries=[100]"], r"boundaries = \(100,\) does nothing under name = cosine"),
        (["phase=from_start", "hold_steps=3"], "hold_steps = 3 does nothing under phase = from_start"),
        (["reference_batch_size=null", "scale_warmup=false"], "scale_warmup = False does nothing without reference"),
        (["name=step"], "needs boundaries"),
        (["name=step", "boundaries=[500]"], "as many rates or else factors"),
        (["name=step", "boundaries=[500]", "rates=[0.1]", "factors=[0.1]"], "as many rates or else factors"),
        (["name=step", "boundaries=[500, 600]", "rates=[0.1]"], "as many rates or else factors"),
        (["name=step", "boundaries=[500, 400]", "rates=[0.1, 0.1]"], r"boundaries = \[500, 400\] do not increase"),
        (["name=step", "boundaries=[100]", "rates=[0.1]"], "100 is not between the end of warm-up, 100, and"),
        (["name=step", "boundaries=[1000]", "rates=[0.1]"], r"1000 is not between .* and steps = 1000"),
        (["name=exponential"], "name = exponential needs decay_steps"),
        (["learning_rate=0.08", "end_learning_rate=0.09"], "end_learning_rate = 0.09 is above learning_rate, the peak"),
        (["name=constant", "total_steps=500"], "total_steps = 500 does nothing under name = constant"),
        (["name=exponential", "decay_steps=5", "total_steps=500"], "total_steps = 500 does nothing under name = exp"),
        (["total_steps=50", "warmup_steps=50"], r"warmup_steps = 50 is not below schedule\.total_steps = 50"),
        (["total_steps=5000", "hold_steps=4500"], r"warm-up = 500 are together not below schedule\.total_steps = 5000"),
        (["total_steps=500", "phase=from_start"], "total_steps = 500 ends before steps = 1000, which phase ="),
        (
            ["name=step", "boundaries=[5000]", "factors=[0.1]", "total_steps=5000"],
            r"5000 is not between .* and schedule\.total_steps = 5000",
        ),
        (["hold_steps=900"], "hold_steps = 900 and warm-up = 100 are together not below steps = 1000"),
    ],
)
def test_schedules_that_cannot_be_are_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, ["train.steps=1000", *(f"train.schedule.{assignment}" for assignment in assignments)])


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["loss_scale=dynamic"], "loss_scale = dynamic does nothing under precision = float32"),
        (["loss_scale=128", "precision=bfloat16"], "loss_scale = 128.0 does nothing under precision = bfloat16"),
        (["loss_scale_initial=4"], "loss_scale_initial = 4.0 does nothing under precision = float32"),
        (
            ["loss_scale=128", "loss_scale_growth_steps=4", "precision=mixed_float16"],
            "loss_scale_growth_steps = 4 does nothing beside a fixed loss_scale = 128.0",
        ),
        (["loss_scale=0", "precision=mixed_float16"], "loss_scale"),
        (["loss_scale=fixed", "precision=mixed_float16"], "loss_scale"),
    ],
)
def test_a_loss_scale_is_float16_s_alone(assignments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, [f"train.{assignment}" for assignment in assignments])


def _train(*assignments: str) -> dict:
    return load_config(None, [f"train.{assignment}" for assignment in assignments]).train.model_dump()


def test_each_optimizer_gets_the_keys_that_act() -> None:
    def hyperparameters(*assignments: str) -> dict:
        keys = [f"train.optimizer.{item}" for item in assignments]
        return load_config(None, [*keys, "train.schedule.learning_rate=0.1"]).train.optimizer.hyperparameters

    assert hyperparameters("name=sgd") == {"momentum": 0.9, "nesterov": False}
    assert hyperparameters("name=adamw") == {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
    assert hyperparameters("name=adam", "epsilon=1.0e-8", "beta_1=0.5")["epsilon"] == 1e-8
    rmsprop = {"momentum": 0.9, "rho": 0.9, "epsilon": 1.0, "centered": False, "initial_accumulator_value": 0.0}
    assert hyperparameters("name=rmsprop") == rmsprop
    assert hyperparameters("name=rmsprop", "epsilon=0.001", "rho=0.8") == rmsprop | {"epsilon": 0.001, "rho": 0.8}
    assert hyperparameters("name=rmsprop", "initial_accumulator_value=1") == rmsprop | {"initial_accumulator_value": 1}
    assert hyperparameters("name=adadelta") == {"rho": 0.95, "epsilon": 1e-8}
    assert hyperparameters("name=adagrad") == {"epsilon": 0.0, "initial_accumulator_value": 0.1}
    assert hyperparameters("name=lars", "legacy_momentum=true", "lars_exclude=[head]") == {
        "momentum": 0.9,
        "nesterov": False,
        "epsilon": 0.0,
        "lars_coefficient": 0.001,
        "lars_weight_decay": 1e-4,
        "lars_decays_weights": False,
    }


def test_the_schedule_has_a_length_of_its_own() -> None:
    """The warm-up is a tenth of it, and a run may end before it does or long before a boundary."""
    train = load_config(None, ["train.steps=100", "train.schedule.total_steps=5000"]).train
    assert (train.schedule_steps, train.warmup_steps) == (5000, 500)
    assert load_config(None, ["train.steps=100"]).train.schedule_steps == 100
    step = ("name=step", "boundaries=[3000]", "factors=[0.1]", "total_steps=5000")
    assert load_config(None, ["train.steps=100", *(f"train.schedule.{item}" for item in step)])


def test_what_acts_is_taken() -> None:
    assert _train(*(key.removeprefix("train.") for key in STEP), "schedule.factors=[0.1, 0.01]")["schedule"][
        "factors"
    ] == (0.1, 0.01)
    assert _train("precision=mixed_float16", "loss_scale=512")["loss_scale"] == 512.0
    assert _train("precision=mixed_float16", "loss_scale=dynamic")["loss_scale"] == "dynamic"
    assert _train("clip.norm_ratio=0.02", "clip.global_norm=null")["clip"]["norm_ratio"] == 0.02
    assert _train("freeze=[efficientnet]", "freeze_batch_norm=all")["freeze"] == ("efficientnet",)


def test_switching_a_part_off_or_over_needs_no_other_key() -> None:
    """A configuration file may have set the part's other keys."""
    assert not load_config(None, ["train.ema.decay=0.9", "train.ema.enabled=false"]).train.ema.enabled
    assert load_config(None, ["train.schedule.warmup_steps=0", "train.schedule.warmup_learning_rate=0.1"])
    assert Config().train.loss_scale is None
