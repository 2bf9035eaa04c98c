"""The base of all packages of the agent: settings, events, change notification, outcomes."""
