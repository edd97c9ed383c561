"""Programs around clients of other languages, and Kafka's own tools, for the long tests.

A tool that is missing fails the test: these tests are run to see that such clients work, and a skip would hide that.
"""
