"""Variable names of google/automl's EfficientDet, from ours.

Ours are the same but for two words, so that its checkpoints and its freezing
patterns (`(efficientnet|fpn_cells|resample_p6)`) fit.
"""


def automl_variable_name(path: str) -> str:
    """The name in google/automl of the variable with this path in our model.

    >>> automl_variable_name("efficientnet-b0/blocks_1/depthwise_conv2d/kernel")
    'efficientnet-b0/blocks_1/depthwise_conv2d/depthwise_kernel'
    >>> automl_variable_name("efficientnet-b0/stem/batch_normalization/gamma")
    'efficientnet-b0/stem/tpu_batch_normalization/gamma'
    """
    return path.replace("/batch_normalization", "/tpu_batch_normalization").replace(
        "/depthwise_conv2d/kernel", "/depthwise_conv2d/depthwise_kernel"
    )
