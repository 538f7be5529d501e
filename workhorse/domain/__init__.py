"""Values and decisions of Workhorse; pure: no clock, no I/O, no logging, no SQL."""
