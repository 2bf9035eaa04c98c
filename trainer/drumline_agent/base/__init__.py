"""What every room of the agent uses: settings, events, change notification, outcomes."""
