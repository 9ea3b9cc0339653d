"""The plugins of the event bus that come with this package, and how installed ones are loaded."""
