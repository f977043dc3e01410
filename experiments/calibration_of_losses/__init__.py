"""Do losses other than cross-entropy train networks that are better calibrated?"""
