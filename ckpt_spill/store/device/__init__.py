"""The calls to a device, all of them, each of a few lines; what is done with them is elsewhere and runs anywhere.

Nothing of RAPIDS is imported before there is something on a device.
"""
