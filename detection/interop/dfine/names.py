"""Names of D-FINE's variables: its authors', those of Hugging Face's files, and ours.

In the authors' names here, attention has a projection each for queries, keys and values, as Hugging Face has them; the
authors store the three as one `in_proj`.
"""

import re

# Ours to the authors', by the path of the layer, after the numbers of stages, blocks and layers became those from 0.
_BACKBONE = (
    (r"^stem_", "stem.stem"),
    (r"(?<=stages\.\d)_", "."),
    (r"/layers\.(\d+)_pointwise$", r"/layers.\1.conv1"),
    (r"/layers\.(\d+)_depthwise$", r"/layers.\1.conv2"),
    (r"/squeeze$", "/aggregation.0"),
    (r"/excite$", "/aggregation.1"),
)
_ENCODER = (
    (r"^attention/", "encoder.0.layers.0/"),
    (r"^input_projection_", "input_proj."),
    (r"^lateral_", "lateral_convs."),
    (r"^downsample_(\d+)_pointwise", r"downsample_convs.\1.0.cv1"),
    (r"^downsample_(\d+)_depthwise", r"downsample_convs.\1.0.cv2"),
    (r"^top_down_(\d+)/", r"fpn_blocks.\1/"),
    (r"^bottom_up_(\d+)/", r"pan_blocks.\1/"),
    (r"^((?:fpn|pan)_blocks\.\d+)/first$", r"\1/cv1"),
    (r"^((?:fpn|pan)_blocks\.\d+)/last$", r"\1/cv4"),
    (r"/branch_1_last$", "/cv2.1"),
    (r"/branch_2_last$", "/cv3.1"),
    (r"/branch_1/", "/cv2.0/"),
    (r"/branch_2/", "/cv3.0/"),
    (r"/first$", "/conv1"),
    (r"/other$", "/conv2"),
    (r"/blocks\.", "/bottlenecks."),
    (r"/conv3x3$", "/conv1"),
    (r"/conv1x1$", "/conv2"),
)
_SELECTION = (
    (r"^projection$", "enc_output.proj"),
    (r"^norm$", "enc_output.norm"),
    (r"^classes$", "enc_score_head"),
    (r"^boxes/layer_", "enc_bbox_head.layers."),
)
_DECODER = (
    (r"^layer_(\d+)/", r"decoder.layers.\1/"),
    (r"^quality_(\d+)/layer_", r"decoder.lqe_layers.\1.reg_conf.layers."),
    (r"^query_positions/layer_", "query_pos_head.layers."),
    (r"^initial_boxes/layer_", "pre_bbox_head.layers."),
    (r"^corners_(\d+)/layer_", r"dec_bbox_head.\1.layers."),
    (r"^classes_", "dec_score_head."),
    (r"/norm_attention$", "/norm1"),
    (r"/norm_gate$", "/gateway.norm"),
    (r"/norm_output$", "/norm3"),
    (r"/gate$", "/gateway.gate"),
    (r"/offsets$", "/cross_attn.sampling_offsets"),
    (r"/weights$", "/cross_attn.attention_weights"),
)
_TRANSFORMER = (
    (r"/self_attention/output$", "/self_attn.out_proj"),
    (r"/self_attention/query$", "/self_attn.q_proj"),
    (r"/self_attention/key$", "/self_attn.k_proj"),
    (r"/self_attention/value$", "/self_attn.v_proj"),
    (r"/(linear|norm)_(\d)$", r"/\1\2"),
)
_PARTS = {
    "encoder": ("encoder.", (*_ENCODER, *_TRANSFORMER)),
    "selection": ("decoder.", _SELECTION),
    "decoder": ("decoder.", (*_DECODER, *_TRANSFORMER)),
}
_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
_VALUES = {"kernel": "weight", "bias": "bias", "scale": "lab.scale", "offset": "lab.bias"} | _NORM
_PROJECTION = "decoder_projection_"
EMBEDDING = "decoder.denoising_class_embed.weight"

# Hugging Face's to the authors'.
_HUGGING_FACE = (
    (r"^model\.backbone\.model\.embedder\.", "backbone.stem."),
    (r"^model\.backbone\.model\.encoder\.", "backbone."),
    (r"(?<=\.)convolution(?=\.)", "conv"),
    (r"(?<=\.)normalization(?=\.)", "bn"),
    (r"^model\.(encoder|decoder)_input_proj\.(\d+)\.0\.", r"\1.input_proj.\2.conv."),
    (r"^model\.(encoder|decoder)_input_proj\.(\d+)\.1\.", r"\1.input_proj.\2.norm."),
    (r"^model\.encoder\.", "encoder."),
    (r"^((?:encoder|model)\..*)self_attn_layer_norm\.", r"\1norm1."),
    (r"^(encoder\..*)final_layer_norm\.", r"\1norm2."),
    (r"final_layer_norm\.", "norm3."),
    (r"\.fc([12])\.", r".linear\1."),
    (r"((?:fpn|pan)_blocks\.\d+)\.conv1\.", r"\1.cv1."),
    (r"((?:fpn|pan)_blocks\.\d+)\.conv2\.", r"\1.cv2.1."),
    (r"((?:fpn|pan)_blocks\.\d+)\.conv3\.", r"\1.cv3.1."),
    (r"((?:fpn|pan)_blocks\.\d+)\.conv4\.", r"\1.cv4."),
    (r"\.csp_rep1\.", ".cv2.0."),
    (r"\.csp_rep2\.", ".cv3.0."),
    (r"^(encoder\.downsample_convs\.\d+)\.conv([12])\.", r"\1.0.cv\2."),
    (r"^model\.decoder\.(layers|lqe_layers)\.", r"decoder.decoder.\1."),
    (r"\.encoder_attn\.", ".cross_attn."),
    (r"^(?:model\.decoder\.)?class_embed\.", "decoder.dec_score_head."),
    (r"^(?:model\.decoder\.)?bbox_embed\.", "decoder.dec_bbox_head."),
    (r"^model\.enc_output\.0\.", "decoder.enc_output.proj."),
    (r"^model\.enc_output\.1\.", "decoder.enc_output.norm."),
    (r"^model\.decoder\.", "decoder."),
    (r"^model\.", "decoder."),
)


def original_name(path: str) -> str:
    """Returns the authors' name of one of our variables.

    >>> original_name("hgnetv2-b0/stage_3_block_1/layer_2_pointwise/batch_normalization/moving_mean")
    'backbone.stages.2.blocks.0.layers.1.conv1.bn.running_mean'
    >>> original_name("encoder/top_down_0/branch_1/block_2/conv3x3/conv2d/kernel")
    'encoder.fpn_blocks.0.cv2.0.bottlenecks.1.conv1.conv.weight'
    >>> original_name("decoder/layer_2/self_attention/query/kernel")
    'decoder.decoder.layers.2.self_attn.q_proj.weight'
    """
    layer, _, variable = path.rpartition("/")
    part, _, layer = layer.partition("/")
    if part == "class_embedding":
        return EMBEDDING
    start, rules = _PARTS.get(part, ("backbone.", _BACKBONE))
    if part.startswith(_PROJECTION):
        start, rules = f"decoder.input_proj.{part.removeprefix(_PROJECTION)}.", ()
    layer, _, kind = layer.rpartition("/") if layer.endswith(("conv2d", "batch_normalization")) else (layer, "", "")
    of_layer = {"": "", "batch_normalization": ".bn" if start == "backbone." else ".norm"}.get(kind, ".conv")
    if start == "backbone.":
        layer = _from_zero(r"(?<![a-z])(stage|block|layer)_(\d+)", layer)
    elif start == "encoder.":
        layer = _from_zero(r"(?<=/)(block)_(\d+)", layer)
    return f"{start}{_renamed(layer, rules)}{of_layer}.{_VALUES[variable]}".replace("/", ".").replace("..", ".")


def name_of_hugging_face(name: str) -> str:
    """Returns the authors' name of a variable in a file of Hugging Face's.

    >>> name_of_hugging_face("model.encoder.fpn_blocks.0.csp_rep1.conv1.conv.weight")
    'encoder.fpn_blocks.0.cv2.0.conv1.conv.weight'
    """
    return _renamed(name, _HUGGING_FACE)


def _renamed(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def _from_zero(pattern: str, layer: str) -> str:
    return re.sub(pattern, lambda match: f"{match[1]}s.{int(match[2]) - 1}", layer)
