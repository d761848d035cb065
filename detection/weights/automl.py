"""google/automl's checkpoints of EfficientDet: the names of their variables."""


def automl_name(path: str) -> str:
    """Returns the name in google/automl of a variable of ours; google/automl differs in two words only.

    >>> automl_name("efficientnet-b0/blocks_1/depthwise_conv2d/kernel")
    'efficientnet-b0/blocks_1/depthwise_conv2d/depthwise_kernel'
    >>> automl_name("efficientnet-b0/stem/batch_normalization/gamma")
    'efficientnet-b0/stem/tpu_batch_normalization/gamma'
    """
    return path.replace("/batch_normalization", "/tpu_batch_normalization").replace(
        "/depthwise_conv2d/kernel", "/depthwise_conv2d/depthwise_kernel"
    )
