"""What Prometheus is told about Drumline: alerts with the command to run, generated as files.

Values only; `python -m tools.monitoring.generate` writes the files of the chart.
"""
