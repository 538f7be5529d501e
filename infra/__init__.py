"""Infrastructure of a deployment on AWS: CDK constructs and two example stacks.

Never imported when Workhorse runs, and not in the wheel.
"""
