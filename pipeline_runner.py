"""The one program of Cocoflow."""
