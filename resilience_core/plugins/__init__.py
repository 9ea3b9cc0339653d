"""The plugins of the event bus that come with this package."""
