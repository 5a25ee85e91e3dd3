"""The tests. A package, so that worker processes can import the classes that tests put into collections."""
