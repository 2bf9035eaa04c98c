"""Who may have how much, and whose turn it is: quota along the tree, users, fair shares."""
