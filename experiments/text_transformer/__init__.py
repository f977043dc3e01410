"""A small transformer on the Stanford Sentiment Treebank: focal loss and trace penalties, their cost and effect."""
