"""Where a wrong step departs from the right one: both are run again and watched, once they are
known to differ.

recording.py notes what modules give, what communicates and what backward starts from; joining.py
finds a rank's tensor in the single run's; departure.py and shares.py draw conclusions, which
report.py puts into words.
"""
