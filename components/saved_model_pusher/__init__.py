"""Blessed Model -> PushedModel: a new whole version in the folder that a model server watches."""
