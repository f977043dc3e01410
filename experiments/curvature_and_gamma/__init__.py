"""Does focal loss flatten the loss surface, which surface, and is the flatter network better calibrated?"""
