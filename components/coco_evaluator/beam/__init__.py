"""The evaluation's Beam transforms: images through models, matching, merged states."""
