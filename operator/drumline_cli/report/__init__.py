"""`drumline report`: one TrainingJob as text, HTML or JSON."""
