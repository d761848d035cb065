"""Runners of the pipeline: in this process (local, beam), or on Kubeflow and Vertex AI, for which it is compiled."""
