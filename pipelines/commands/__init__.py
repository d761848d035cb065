"""The commands of `cocoflow`, one module each, imported when used."""
