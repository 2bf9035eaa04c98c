"""Make a training script part of a Drumline job with three lines.

    import drumline_client

    run = drumline_client.join()
    for step in range(start, total):
        ...
        run.step(step, loss=loss)
        if run.should_save():
            save(path)
            run.saved(step, path)

Outside Drumline every call is a no-op. Python 3.9 and the standard library; docs/own-scripts.md.
"""

from drumline_client.run import PHASES, Run, __version__, join

__all__ = ["PHASES", "Run", "__version__", "join"]
