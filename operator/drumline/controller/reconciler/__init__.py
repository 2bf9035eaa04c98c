"""The work queue, its workers, and the reconciler that brings one TrainingJob to its plan."""
