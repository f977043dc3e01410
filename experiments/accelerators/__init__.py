"""The programs of the main job, compiled for TPUs that are not there, and timed on a device that is."""
