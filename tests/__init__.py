"""The tests of Workhorse; folders mirror the tree that they test."""
