"""Does focal temperature scaling calibrate better than temperature scaling, and what do its gamma and T say?"""
