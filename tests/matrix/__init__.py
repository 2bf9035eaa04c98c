"""The kill matrix: every fault at every moment in every role, each judged bit for bit."""
